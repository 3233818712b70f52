"""Synonyms for the words of a question: a surname is a last name, a nation is a country.

Each line of `thesaurus.txt` is a group of phrases; each of them may mean any other phrase of its line, and nothing else.
"""

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
