"""Finds the columns that a question says are empty: "artists without a website", "albums that have no label"."""

import re
from collections.abc import Iterator, Sequence

from tools.linking.said.said_columns import keys_of
from tools.linking.thesaurus import other_words
from tools.linking.word_forms import name_stems, name_words, split, stem
from tools.schema import ColumnRef, Schema

_ABSENT = re.compile(
    r"\b(?:without (?:an?|any|their)|(?:have|has|had|having|with) no(?! (?:more|less|fewer))|lack(?:s|ing)?(?: an?| any)?"
    r"|(?:do|does|did)(?: not|n['’]t) have (?:an?|any))\s+((?:[\w'’-]+\s*){1,4})",
    re.IGNORECASE,
)
_LONGEST = 3  # words of a column's name

Stems = tuple[str, ...]


def absent_columns(schema: Schema, question: str) -> frozenset[ColumnRef]:
    """The columns, in lower case, whose whole names follow "without a", "have no" and the like, in their own words or in others
    that mean the same. Only tables that the question names count or, if it names none, all. Keys are left out, and what a
    table is called: who has no orders has no rows there.

    >>> from tools.schema import Column, Table
    >>> artist = Table("artists", (Column("name", "TEXT"), Column("website", "TEXT")))
    >>> sorted(absent_columns(Schema((artist,), "sqlite"), "Which artists have no web page?"))
    [('artists', 'website')]
    """
    words = frozenset(stem(word.key) for word in split(question))
    called = frozenset[str]().union(*(name_stems(table.name) for table in schema.tables))
    named = [table for table in schema.tables if name_stems(table.name) <= words]
    said = {name for found in _ABSENT.finditer(question) for name in _names(found[1], called)}
    every = (
        ((table.name.lower(), column.name.lower()), tuple(map(stem, name_words(column.name))))
        for table in named or schema.tables
        for column in table.columns
        if column.nullable
    )
    return frozenset(place for place, name in every if name in said and not called & set(name)) - keys_of(schema)


def _names(following: str, called: frozenset[str]) -> Iterator[Stems]:
    """What the words may name: their first ones, and what these mean, unless they are `called` so as a table is."""
    stems = [stem(word.key) for word in split(following)]
    for size in range(1, min(_LONGEST, len(stems)) + 1):
        first: Sequence[str] = stems[:size]
        if called.isdisjoint(first):
            yield tuple(first)
            yield from (tuple(other) for other in other_words(first, ()))
