"""What is known about an answer when it is doubted: its tree, the schema, the question, and what linking found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from tools.linking.link_schema import Link
from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import NUMBER_WORDS, keys, stem
from tools.schema import Column, ColumnRef, Schema
from tools.sql.joinable_columns import Joinable, joinable
from tools.sql.scope import column_ref

COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.ILike)


@dataclass(frozen=True)
class Evidence:
    """An answer and what it is judged by. `values` and `links` may be empty: then nothing is concluded from them."""

    tree: exp.Expr
    schema: Schema
    question: str
    values: Sequence[ValueMatch]
    links: Sequence[Link]

    @cached_property
    def joins(self) -> Joinable:
        """The columns that may be equated."""
        return joinable(self.schema)

    @cached_property
    def keys(self) -> frozenset[ColumnRef]:
        """Every primary and foreign key, in lower case."""
        own = {(t.name.lower(), c.name.lower()) for t in self.schema.tables for c in t.columns if c.primary_key}
        refers = {
            (t.name.lower(), name.lower()) for t in self.schema.tables for key in t.foreign_keys for name in key.columns
        }
        return frozenset(own | refers)

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of the question's words, and the digits of its number words."""
        words = set(keys(self.question))
        numbers = {str(number) for number, word in enumerate(NUMBER_WORDS) if word in words}
        return frozenset({stem(word) for word in words} | numbers)

    def place(self, column: exp.Expr | None) -> ColumnRef | None:
        """The table and the column that a name means, in lower case; None unless it is a table's column."""
        found = column_ref(column, self.schema) if isinstance(column, exp.Column) else None
        return (found[0].lower(), found[1].lower()) if found else None

    def column(self, place: ColumnRef) -> Column:
        """The column of the schema."""
        table = self.schema.table(place[0])
        column = table.column(place[1]) if table else None
        if column is None:
            raise ValueError(f"the schema has no column {'.'.join(place)}")
        return column

    def alike(self, one: ColumnRef, other: ColumnRef) -> bool:
        """Whether the columns hold values of the same kind: they have one name, or may be joined."""
        return one[1] == other[1] or (one[1], other[1]) in self.joins.between(one[0], other[0])

    def columns(self) -> Iterator[tuple[exp.Column, ColumnRef]]:
        """Each column of a table in the query, and its place."""
        for column in self.tree.find_all(exp.Column):
            place = self.place(column)
            if place is not None:
                yield column, place

    def literals(self) -> Iterator[tuple[exp.Column, exp.Literal]]:
        """Each literal that a column is compared with."""
        for node in self.tree.find_all(*COMPARISONS, exp.In, exp.Between):
            compared = node.expressions if isinstance(node, exp.In) else list(node.args.values())[1:]
            for literal in compared:
                if isinstance(node.this, exp.Column) and isinstance(literal, exp.Literal):
                    yield node.this, literal
