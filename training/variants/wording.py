"""Words that people use for the names in a schema: labels, singular and plural.

Learns synonyms for the words of names from Spider-Syn's questions, in which its authors replaced schema words.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from tools.linking.word_forms import STOP_WORDS, name_words, stem, word_set

_IRREGULAR = {
    "person": "people",
    "child": "children",
    "man": "men",
    "woman": "women",
    "foot": "feet",
    "mouse": "mice",
    "goose": "geese",
}
_SAME = word_set("""
    staff faculty series species sheep fish aircraft information equipment music data news software percent from to in on by of
    at km
""")
_HEAD = re.compile(r"^(.+?)( (?:for|of|in|per|from|to) .+)$")


def plural(word: str) -> str:
    """The plural of the last word of a label or a name, or of the one before a preposition.

    >>> [plural(label) for label in ("city", "race", "class", "staff", "key", "home_town", "head of state")]
    ['cities', 'races', 'classes', 'staff', 'keys', 'home_towns', 'heads of state']
    """
    phrase = _HEAD.match(word)
    if phrase is not None:
        return plural(phrase[1]) + phrase[2]
    head, separator, last = word.rpartition("_") if "_" in word else word.rpartition(" ")
    return head + separator + _plural(last)


def _plural(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word in _SAME or word in _IRREGULAR.values() or (word.endswith("s") and stem(word) != word):
        return word
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return word[:-1] + "ies"
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    return word + "s"


def singular(word: str) -> str:
    """The singular of the last word, or of the one before a preposition.

    >>> singular("cities"), singular("home towns"), singular("people"), singular("movies"), singular("status")
    ('city', 'home town', 'person', 'movie', 'status')
    """
    phrase = _HEAD.match(word)
    if phrase is not None:
        return singular(phrase[1]) + phrase[2]
    head, separator, last = word.rpartition(" ")
    return head + separator + _PLURALS.get(last, last if last in _SAME else stem(last))


_PLURALS = {"movies": "movie", "movie": "movie", "cookies": "cookie", "species": "species", "courses": "course"}


def words(name: str) -> str:
    """A name as words in lower case.

    >>> words("Home_Town"), words("birthYear")
    ('home town', 'birth year')
    """
    return " ".join(name_words(name)) or name


def with_article(noun: str) -> str:
    """`an order`, `a singer`."""
    return f"{'an' if noun[:1] in 'aeiou' and not noun.startswith(('uni', 'use', 'eu')) else 'a'} {noun}"


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
