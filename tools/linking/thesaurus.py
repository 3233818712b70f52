"""Synonyms for the words of a question: a surname is a last name, a nation is a country.

Each line of `thesaurus.txt` is a group of phrases; each of them may mean any other phrase of its line, and nothing else.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from tools.linking.word_forms import keys, stem

Phrase = tuple[str, ...]
LONGEST = 3  # words of a phrase


def other_words(said: Sequence[str], known: Collection[str]) -> list[Phrase]:
    """Synonyms of the phrases in `said`; a phrase whose words are all `known` means only itself.

    said: a question's stems, in order. known: the stems of the names that could be meant.
    """
    phrases = (phrase for phrase in _phrases_of(said) if not all(word in known for word in phrase))
    return list(dict.fromkeys(other for phrase in phrases for other in _groups()[phrase]))


def _phrases_of(said: Sequence[str]) -> Iterator[Phrase]:
    """The known phrases of a text, from left to right; where several begin, the longest is taken."""
    at = 0
    while at < len(said):
        ends = range(min(len(said), at + LONGEST), at, -1)
        length = next((end - at for end in ends if tuple(said[at:end]) in _groups()), 0)
        if length:
            yield tuple(said[at : at + length])
        at += length or 1


@lru_cache(maxsize=1)
def _groups() -> Mapping[Phrase, Sequence[Phrase]]:
    """The other phrases of its lines, by phrase."""
    others: dict[Phrase, dict[Phrase, None]] = defaultdict(dict)
    for line in Path(__file__).with_name("thesaurus.txt").read_text(encoding="utf-8").splitlines():
        group = [] if line.startswith("#") else [tuple(map(stem, keys(phrase))) for phrase in line.split(",")]
        for phrase in group:
            others[phrase] |= dict.fromkeys(other for other in group if other != phrase)
    return {phrase: tuple(own) for phrase, own in others.items()}


# What a superlative or a comparative ranks by: words of columns, for schema linking. Not synonyms: "the latest" names no date.
_RANKED_BY = {
    "oldest youngest older younger": "age birth birthday birthdate dob",
    "tallest taller": "height",
    "shortest shorter": "height length duration",
    "longest longer": "length duration",
    "heaviest lightest heavier lighter": "weight",
    "largest biggest smallest larger bigger smaller": "size area population capacity",
    "fastest slowest faster slower": "speed",
    "cheapest cheaper expensive costly": "price cost",
    "latest newest recent recently earliest": "date year time",
    "best worst": "rank rating score",
}
_MEASURES = {word: measures.split() for words, measures in _RANKED_BY.items() for word in words.split()}
_YEAR = re.compile(r"1[89]\d\d|20\d\d")


def implied_words(said: Sequence[str]) -> list[str]:
    """Words of columns by which a question ranks or selects: `age` for the oldest, `year` for 1999.

    said: the question's words in lower case.

    >>> implied_words(["the", "heaviest", "dog", "of", "1999"])
    ['weight', 'year']
    """
    return [each for word in said for each in (["year"] if _YEAR.fullmatch(word) else _MEASURES.get(word, []))]
