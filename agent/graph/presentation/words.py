"""Names of tables and columns as English words: `list_price` is "list price", one of `albums` is an "album"."""

import re

from tools.linking.word_forms import name_words, stem

_KEY_WORDS = ("id", "ids", "key", "no", "nr", "code")


def words(name: str) -> str:
    """The words of a name, in lower case unless they are capitals throughout.

    >>> words("list_price"), words("ReactorModel"), words("GDP"), words("area_m2")
    ('list price', 'reactor model', 'GDP', 'area m2')
    """
    if re.fullmatch(r"[A-Z]{2,}", name):
        return name
    return " ".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name).lower().split()) or name


def plural(noun: str) -> str:
    """The plural of a noun, or of the last word of several; a plural stays.

    >>> plural("album"), plural("cities"), plural("order line"), plural("genre"), plural("person")
    ('albums', 'cities', 'order lines', 'genres', 'people')
    """
    first, _, last = noun.rpartition(" ")
    if stem(last) == last:
        last = _plural_word(last)
    return f"{first} {last}".strip()


def singular(noun: str) -> str:
    """One of them.

    >>> singular("albums"), singular("order lines"), singular("people"), singular("genres")
    ('album', 'order line', 'person', 'genre')
    """
    first, _, last = noun.rpartition(" ")
    return f"{first} {stem(last)}".strip()


def counted(count: int, noun: str) -> str:
    """A number of things, whose noun is a plural.

    >>> counted(1, "albums"), counted(1200, "albums")
    ('1 album', '1,200 albums')
    """
    return f"{count:,} {singular(noun) if count == 1 else noun}"


def without_key_word(name: str) -> str:
    """The words of a key's name without "id": `manager_id` is "manager"; empty if nothing is left."""
    own = list(name_words(name))
    while own and own[-1] in _KEY_WORDS:
        own.pop()
    return " ".join(own)


_PLURALS = {"person": "people", "child": "children", "man": "men", "woman": "women", "foot": "feet", "mouse": "mice"}


def _plural_word(word: str) -> str:
    if word in _PLURALS:
        return _PLURALS[word]
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(s|x|z|ch|sh)$", word) else "s")
