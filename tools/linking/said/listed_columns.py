"""Finds the columns that a question lists at its head, and nothing else: "What are the grape, winery and year of ...". A last
sentence that is nothing but a list counts before it: "Only the comments.", "First and last names."

A list counts only where each word of it is a column's name or joins such names, up to a word that begins the rest of the
question. At the head, names such as "name", which may be another table's, make a list that says too little, and so does one
name that is a table's as well.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from tools.linking.match_values import ValueMatch
from tools.linking.said.said_columns import words_of_values
from tools.linking.word_forms import Word, name_words, split, stem, word_set
from tools.schema import ColumnRef, Schema

_HEAD = re.compile(
    r"(?:what (?:is|are|were|was)|find|list|show|give|return|tell|report|display|select|please (?:show|list|give))(?: me)?\b",
    re.I,
)
_LAST = re.compile(
    r"[.?!;]\s*(?:(?:only|just|i (?:only |just )?(?:need|want))\b)?(?P<list>(?:(?!\b(?:their|its|his|her)\b)[^.?!;])+)"
    r"[.?!;]?\s*$",
    re.I,
)
_BOTH_NAMES = re.compile(r"\b(first|last) (and|or) (first|last) names?\b", re.I)
_JOINING = word_set("please the a an all and as well its their each different distinct unique both")
_ENDING = word_set("of for from in that who whose where with which by on at sorted ordered")
_VAGUE = word_set("code date description detail id name number title total type")
_MORE = re.compile(r"\b(?:and|with) (?:the|their|its|his|her|what|how)\b|\b(?:each|every)\b|[.?!;]\s*\w", re.I)

_NO_WORDS: frozenset[str] = frozenset()

LONGEST = 6  # words of a column's name
Places = frozenset[ColumnRef]
Stems = tuple[str, ...]


def listed_columns(schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> tuple[Places, ...]:
    """For each column's name in the list at the question's head: the columns that are called so, in lower case; nothing if the
    head holds more than such a list.

    >>> from tools.schema import Column, Table
    >>> wine = Table("wine", tuple(Column(name, "TEXT") for name in ("grape", "winery", "price", "year")))
    >>> found = listed_columns(Schema((wine,), "sqlite"), "List the grape, winery and year of the wines by price.")
    >>> [sorted(places) for places in found]
    [[('wine', 'grape')], [('wine', 'winery')], [('wine', 'year')]]
    >>> listed_columns(Schema((wine,), "sqlite"), "List the grape and the average price of the wines.")
    ()
    """
    text = _BOTH_NAMES.sub(r"\1 name \2 \3 name", question.strip())
    last, head = _LAST.search(text), _HEAD.match(text)
    found = _list(schema, last["list"], _NO_WORDS, whole=True) if last else ()
    if found or head is None or words_of_values(text[: head.end()], values):
        return found
    found = _list(schema, text[head.end() :], _VAGUE)
    tables = {_names(schema, _VAGUE).get(tuple(map(stem, name_words(table.name)))) for table in schema.tables}
    return found if not (len(found) == 1 and found[0] in tables) else ()


def _list(schema: Schema, text: str, vague: frozenset[str], whole: bool = False) -> tuple[Places, ...]:
    """The places of each name with which the text begins; nothing if it begins with anything else. whole: it may end there."""
    found = tuple(dict.fromkeys(_read(_names(schema, vague), split(text), text, whole)))
    return found if all(found) else ()


def _read(names: Mapping[Stems, Places], words: Sequence[Word], text: str, whole: bool) -> Iterator[Places]:
    """The places of each name in turn; an empty set where the list holds anything else, or more is asked for behind it."""
    at, apart = 0, True
    while at < len(words) and words[at].key not in _ENDING:
        stems = tuple(stem(word.key) for word in words[at : at + LONGEST])
        length = next((size for size in range(len(stems), 0, -1) if stems[:size] in names), 0)
        if length:
            yield names[stems[:length]] if apart else frozenset()
        elif words[at].key not in _JOINING:
            yield frozenset()
        at += length or 1
        apart = not length or "," in text[words[at - 1].end : words[at].start if at < len(words) else None]
    if not whole if at == len(words) else _MORE.search(text[words[at].start :]):
        yield frozenset()


def _names(schema: Schema, vague: frozenset[str]) -> dict[Stems, Places]:
    """The columns by the stems of their names' words; a name of `vague` words alone has none."""
    found: dict[Stems, set[ColumnRef]] = {}
    for table in schema.tables:
        for column in table.columns:
            name = tuple(map(stem, name_words(column.name)))
            place = (table.name.lower(), column.name.lower())
            found.setdefault(name, set()).update(() if set(name) <= vague else (place,))
    return {name: frozenset(places) for name, places in found.items()}
