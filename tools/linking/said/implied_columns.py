"""Finds the columns that a question means by how it compares: the cheapest album is that of the least price.

Of the gold plans of questions that no rule was made for, 97 % or more have the one column that fits
(log/2026-11-25-invented-questions.md). Where several fit, nothing is said.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from tools.linking.match_values import ValueMatch
from tools.linking.said.said_columns import keys_of, words_of_values
from tools.linking.word_forms import name_stems, name_words, split, stem, word_set
from tools.schema import Column, ColumnRef, Schema, Table
from tools.sql.scope import type_kind

# How a question compares, and the words of the columns that it compares by.
_IMPLIED = (
    (r"cheap(?:er|est)?|(?:in)?expensive|costly|costs?", word_set("price cost fee")),
    (r"earn(?:s|ed|ing)?|(?:best|better|well|worst|highest|lowest)[ -]paid|paid (?:the )?(?:most|least|best|more|less)",
     word_set("salary wage pay earning income")),
    (r"oldest|youngest|older|younger", word_set("age birth birthday birthdate dob")),
    (r"longest|longer|shortest|shorter", word_set("length duration")),
    (r"tallest|taller|shortest|shorter", word_set("height")),
    (r"heaviest|heavier|lightest|lighter", word_set("weight")),
    (r"fastest|faster|slowest|slower", word_set("speed")),
)  # fmt: skip
_PATTERNS = tuple((re.compile(rf"\b(?:{words})\b", re.IGNORECASE), names) for words, names in _IMPLIED)
_DATED = re.compile(r"\b(?:oldest|newest|latest|earliest|most recent(?:ly)?)\b", re.IGNORECASE)
_OF_LIFE, _OF_TIME = word_set("age birth birthday birthdate dob"), word_set("date year")

Places = frozenset[ColumnRef]


def implied_columns(schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> tuple[Places, ...]:
    """The columns that the question compares by without naming them, in lower case, each by itself.

    Only tables that the question names count or, if it names none, all:

    >>> album = Table("albums", (Column("title", "TEXT"), Column("list_price", "REAL"), Column("released", "DATE")))
    >>> schema = Schema((album, Table("concerts", (Column("ticket_price", "REAL"),))), "sqlite")
    >>> [sorted(places) for places in implied_columns(schema, "Which albums are the cheapest?")]
    [[('albums', 'list_price')]]
    >>> [sorted(places) for places in implied_columns(schema, "What is the title of the newest album?")]
    [[('albums', 'released')]]
    >>> implied_columns(schema, "What is the cheapest?")
    ()
    """
    text = _outside_values(question, values)
    said = {stem(word.key) for word in split(question)}
    named = [table for table in schema.tables if name_stems(table.name) <= said]
    tables, keys = named or schema.tables, keys_of(schema)
    found = [_called(tables, keys, names) for pattern, names in _PATTERNS if pattern.search(text)]
    if named and _DATED.search(text) and not _called(named, keys, _OF_LIFE):
        found.append(_dated(named, keys))
    return tuple(dict.fromkeys(places for places in found if len(places) == 1))


def _outside_values(question: str, values: Sequence[ValueMatch]) -> str:
    """The question without the words that may be a value: "The Oldest House" is no house."""
    taken = words_of_values(question, values)
    return " ".join(word.text for number, word in enumerate(split(question)) if number not in taken)


def _called(tables: Collection[Table], keys: Places, names: frozenset[str]) -> Places:
    """The columns, other than keys, in whose names one of the words is."""
    return frozenset(
        place for place, column in _columns(tables) if place not in keys and name_stems(column.name) & names
    )


def _dated(tables: Collection[Table], keys: Places) -> Places:
    """The columns of dates and years."""
    every = ((place, column) for place, column in _columns(tables) if place not in keys)
    return frozenset(
        place for place, column in every if type_kind(column.type) == "time" or _OF_TIME & set(name_words(column.name))
    )


def _columns(tables: Collection[Table]) -> Iterator[tuple[ColumnRef, Column]]:
    for table in tables:
        for column in table.columns:
            yield (table.name.lower(), column.name.lower()), column
