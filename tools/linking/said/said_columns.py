"""Finds the columns of several words whose names a question says in full: SQL for it surely needs them.

All of them stand in the gold plans of the questions on held-back databases, and 98 % in those of Spider's dev questions
(log/2026-11-25-said-columns.md). A single word may be said of something else, and a key may be meant by joining, so they
are left out.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import Word, name_stems, name_words, split, stem, word_set
from tools.schema import ColumnRef, Schema

SURELY_VALUE = 0.8  # least score of a match whose words name a value, and so no column
_SILENT = word_set("a an at by for from in of on the to")  # words of names that people leave out or put in
_GENERIC = word_set("code date id name number title total type")  # words that many names have

Stems = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """Columns of one name, said by the words `first` to `last` (exclusive) of the question."""

    first: int
    last: int
    places: frozenset[ColumnRef]

    def within(self, other: "_Span") -> bool:
        return other.first <= self.first and self.last <= other.last and self != other


@dataclass(frozen=True, slots=True)
class SaidColumns:
    """`named`: for each column's name that a question says in full, the columns that are called so. `shadowed`: columns of
    whose names it says no words but those of such longer names, and in which it names no value. All in lower case."""

    named: tuple[frozenset[ColumnRef], ...] = ()
    shadowed: frozenset[ColumnRef] = frozenset()


def said_columns(schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> SaidColumns:
    """The columns whose names the question says in full, in its order, and what they leave no words for.

    A name counts in whatever style it is written. Here the only bed that is said is that of the bed type:

    >>> from tools.schema import Column, Table
    >>> room = Table("room", (Column("bedType", "TEXT"), Column("beds", "INTEGER"), Column("price_in_euros", "REAL")))
    >>> said = said_columns(Schema((room,), "sqlite"), "What is the average price (in Euro) for each bed type?")
    >>> [sorted(places) for places in said.named], sorted(said.shadowed)
    ([[('room', 'price_in_euros')], [('room', 'bedtype')]], [('room', 'beds')])
    """
    words = [word for word in split(question) if word.key not in _SILENT]
    stems = [stem(word.key) for word in words]
    taken = words_of_values(question, values, words)
    spans = [span for span in _spans(schema, stems) if taken.isdisjoint(_inside(span))]
    longest = [span for span in spans if not any(span.within(other) for other in spans)]
    named = dict.fromkeys(span.places for span in sorted(longest, key=lambda span: span.first))
    shadowed = _shadowed(schema, stems, longest)
    holding = {(match.table.lower(), match.column.lower()) for match in values}
    return SaidColumns(tuple(named), shadowed - holding)


def _shadowed(schema: Schema, said: Sequence[str], spans: Sequence[_Span]) -> frozenset[ColumnRef]:
    """The columns of which the question says words, but only inside spans that name others."""
    left = Counter(said)
    left.subtract(said[number] for span in spans for number in _inside(span))
    rest = frozenset(+left)
    inside = frozenset(said) - rest
    named = frozenset[ColumnRef]().union(*(span.places for span in spans))
    names = {(t.name.lower(), c.name.lower()): name_stems(c.name) - _SILENT for t in schema.tables for c in t.columns}
    found = (place for place, words in names.items() if (words & inside) - _GENERIC and not words & rest)
    return frozenset(found) - named - keys_of(schema)


def _inside(span: _Span) -> range:
    return range(span.first, span.last)


def words_of_values(question: str, values: Sequence[ValueMatch], words: Sequence[Word] | None = None) -> frozenset[int]:
    """The numbers of the words, by default of all in the question, that are, or may be, a value of the database."""
    found = ((question.find(match.phrase), match) for match in values if match.score >= SURELY_VALUE)
    spans = [(start, start + len(match.phrase)) for start, match in found if start >= 0]
    numbered = enumerate(split(question) if words is None else words)
    return frozenset(number for number, word in numbered if any(start <= word.start < end for start, end in spans))


def _spans(schema: Schema, said: Sequence[str]) -> list[_Span]:
    return [
        _Span(first, first + len(name), places)
        for name, places in _nameable(schema).items()
        for first in range(len(said) - len(name) + 1)
        if tuple(said[first : first + len(name)]) == name
    ]


def _nameable(schema: Schema) -> dict[Stems, frozenset[ColumnRef]]:
    """The columns whose names have several words, by these.

    Keys are left out, and names that are parts of longer ones: "air date" may mean an `Original_air_date`.
    """
    places: dict[Stems, set[ColumnRef]] = defaultdict(set)
    for table in schema.tables:
        for column in table.columns:
            name = tuple(stem(word) for word in name_words(column.name) if word not in _SILENT)
            places[name].add((table.name.lower(), column.name.lower()))
    keys, whole = keys_of(schema), {name for name in places if not any(set(name) < set(other) for other in places)}
    return {name: frozenset(places[name]) for name in whole if len(name) > 1 and places[name].isdisjoint(keys)}


def keys_of(schema: Schema) -> frozenset[ColumnRef]:
    """What identifies rows: SQL that joins by it may not need to name it, and whoever says it may mean what it refers to."""
    own = {(table.name.lower(), c.name.lower()) for table in schema.tables for c in table.columns if c.primary_key}
    for table in schema.tables:
        for key in table.foreign_keys:
            own |= {(table.name.lower(), name.lower()) for name in key.columns}
            own |= {(key.ref_table.lower(), name.lower()) for name in key.ref_columns}
    return frozenset(own)
