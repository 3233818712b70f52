"""Words that people use for the names in a schema: labels, singular and plural."""

import re

from tools.linking.word_forms import name_words, stem, word_set

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
