"""Other words for what a question says: a surname is a last name, a nation a country.

`thesaurus.txt` has a group of phrases on each line; each may stand for the others of its line, and for no more than them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from tools.linking.word_forms import keys, stem

Phrase = tuple[str, ...]
LONGEST = 3  # words of a phrase


def other_words(said: Sequence[str], known: Collection[str]) -> list[Phrase]:
    """Phrases that may be meant by those of `said`; a phrase whose every word is `known` means itself.

    said: a question's stems, in order. known: the stems of the names that could be meant.
    """
    phrases = (phrase for phrase in _phrases_of(said) if not all(word in known for word in phrase))
    return list(dict.fromkeys(other for phrase in phrases for other in _groups()[phrase]))


def _phrases_of(said: Sequence[str]) -> Iterator[Phrase]:
    """The known phrases of a text, of those that overlap the longest that comes first."""
    at = 0
    while at < len(said):
        ends = range(min(len(said), at + LONGEST), at, -1)
        length = next((end - at for end in ends if tuple(said[at:end]) in _groups()), 0)
        if length:
            yield tuple(said[at : at + length])
        at += length or 1


@lru_cache(maxsize=1)
def _groups() -> Mapping[Phrase, Sequence[Phrase]]:
    """By phrase the others of its lines."""
    others: dict[Phrase, dict[Phrase, None]] = defaultdict(dict)
    for line in Path(__file__).with_name("thesaurus.txt").read_text(encoding="utf-8").splitlines():
        group = [] if line.startswith("#") else [tuple(map(stem, keys(phrase))) for phrase in line.split(",")]
        for phrase in group:
            others[phrase] |= dict.fromkeys(other for other in group if other != phrase)
    return {phrase: tuple(own) for phrase, own in others.items()}
