"""Learns synonyms for the words of names from Spider-Syn's questions, in which its authors replaced schema words."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from tools.linking.word_forms import STOP_WORDS

Synonyms = Mapping[str, Sequence[str]]
LEAST_COUNT = 2  # a single occurrence is often a slip or a rewording of the whole phrase


def read_synonyms(pairs: Iterable[tuple[str, str]]) -> Synonyms:
    """Maps each old word to new phrases; all in lower case, and in the singular if both were plural."""
    counts = Counter(swap for old, new in pairs for swap in _swaps(_words(old), _words(new)))
    synonyms: dict[str, list[str]] = defaultdict(list)
    for (old, new), count in sorted(counts.items()):
        if count >= LEAST_COUNT and old != new:
            synonyms[old].append(new)
            synonyms[new].append(old)
    return {word: sorted(set(others)) for word, others in synonyms.items() if " " not in word}


def _words(question: str) -> list[str]:
    letters = "".join(letter if letter.isalnum() else " " for letter in question.casefold())
    return letters.split()


def _swaps(old: list[str], new: list[str]) -> Iterable[tuple[str, str]]:
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "replace" and b - a == 1 and d - c <= 2 and _telling(old[a:b] + new[c:d]):
            yield _singular(old[a], new[d - 1], new[c:d])


def _telling(words: list[str]) -> bool:
    return all(word.isalpha() and word not in STOP_WORDS and len(word) > 2 for word in words)


def _singular(old: str, last: str, new: list[str]) -> tuple[str, str]:
    if old.endswith("s") and last.endswith("s"):
        return _cut(old), " ".join([*new[:-1], _cut(last)])
    return old, " ".join(new)


def _cut(plural: str) -> str:
    if plural.endswith("ies"):
        return plural[:-3] + "y"
    return plural[:-2] if plural.endswith(("sses", "ches", "xes")) else plural.removesuffix("s")
