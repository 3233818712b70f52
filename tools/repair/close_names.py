"""Finds the existing name that a wrong one means: the same words in another spelling, or one near miss. It never guesses."""

from collections.abc import Iterable
from difflib import SequenceMatcher

from tools.linking.word_forms import name_words, stem

NEAR_MISS = 0.8
CLEARLY = 0.08
SHORTEST = 4


def same_words(wanted: str, names: Iterable[str], owner: str = "") -> str | None:
    """The one name with the same words, except for case, plural, underscores, or the owner's name as a prefix: `singers` is
    `Singer`, `name` of singer is `singer_name`. None if there is none, or more than one.

    >>> same_words("singers", ["Singer", "Song"])
    'Singer'
    >>> same_words("name", ["singer_name", "country"], owner="singer")
    'singer_name'
    """
    key, prefix = _key(wanted), _key(owner)
    variants = {key, prefix + key} | ({key.removeprefix(prefix)} if prefix and key != prefix else set())
    found = {name for name in names if _key(name) in variants}
    return found.pop() if len(found) == 1 else None


def near_miss(wanted: str, names: Iterable[str]) -> str | None:
    """The name whose letters are at least 0.8 similar, and clearly more similar than the next name's; None if there is none.

    >>> near_miss("capasity", ["capacity", "city"])
    'capacity'
    >>> near_miss("name1", ["name2", "name3"]) is None  # which of the two?
    True
    """
    letters = _letters(wanted)
    if len(letters) < SHORTEST:
        return None
    ranked = sorted(((_similarity(letters, _letters(name)), name) for name in set(names)), reverse=True)
    close = [(score, name) for score, name in ranked if score >= NEAR_MISS]
    clear = len(close) == 1 or (len(close) > 1 and close[0][0] - close[1][0] >= CLEARLY)
    return close[0][1] if clear else None


def _similarity(first: str, second: str) -> float:
    return SequenceMatcher(None, min(first, second), max(first, second)).ratio()


def _letters(name: str) -> str:
    return "".join(name_words(name))


def _key(name: str) -> str:
    return "".join(stem(word) for word in name_words(name))
