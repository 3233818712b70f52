"""What a database looks like: tables, columns, keys, samples. Data only: no connection, no SQL."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

ColumnRef = tuple[str, str]  # a table and a column of it


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `type` is the engine's own word, `samples` at most three short distinct values as text.

    `choices`: the distinct values of a column that has few and short ones, as text; none where they were not looked up
    (`tools.databases.choices`).
    `made_of`: the words of the expression that computes it; none for a column that is stored.
    """

    name: str
    type: str
    primary_key: bool = False
    nullable: bool = True
    comment: str = ""
    samples: tuple[str, ...] = ()
    made_of: frozenset[str] = frozenset()
    choices: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:  # the default takes 40 times as long
        own = (self.name, self.type, self.primary_key, self.nullable, self.comment, self.samples, self.made_of)
        return Column, (*own, self.choices)


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """`columns[i]` of the owning table refers to `ref_columns[i]` of `ref_table`."""

    columns: tuple[str, ...]
    ref_table: str
    ref_columns: tuple[str, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeignKey, (self.columns, self.ref_table, self.ref_columns)


@dataclass(frozen=True, slots=True)
class Table:
    """A table or a view; `row_count` is None where counting would cost too much.

    `made_of`: the words of the SQL of a view, or of a virtual table; none for others, and where the server does not tell them.
    `parents`: the tables that show its rows as their own: those that it is a partition of, or inherits from.
    `path`: the schema that holds it and its name there; none in the default schema. Its `name` is then the path with a dot, or
    the bare name where that is unique (`tools.databases.open_database`).
    `rule`: the condition, in SQL, of the rows that may be seen; none where all may (`tools.guard.visibility`).
    """

    name: str
    columns: tuple[Column, ...]
    foreign_keys: tuple[ForeignKey, ...] = ()
    comment: str = ""
    row_count: int | None = None
    made_of: frozenset[str] = frozenset()
    parents: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    rule: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        own = (
            self.name,
            self.columns,
            self.foreign_keys,
            self.comment,
            self.row_count,
            self.made_of,
            self.parents,
            self.path,
            self.rule,
        )
        return Table, own

    def column(self, name: str) -> Column | None:
        """The column of that name, ignoring case."""
        wanted = name.casefold()
        return next((column for column in self.columns if column.name.casefold() == wanted), None)


@dataclass(frozen=True, slots=True)
class Schema:
    """Every table of a database, in the database's own order; `dialect` is sqlglot's name for its SQL.

    `own_types`: the types that were made in this database, in lower case; a type may list values, and names of columns.
    """

    tables: tuple[Table, ...]
    dialect: str
    own_types: frozenset[str] = frozenset()
    _derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # see `derived`

    def table(self, name: str) -> Table | None:
        """The table of that name, or at that path with a dot, ignoring case; the first where there are several."""
        return _tables_by_name(self).get(name.casefold())

    def owners(self, column: str) -> list[str]:
        """Names of the tables that have a column of that name, ignoring case."""
        return _owners(self).get(column.casefold(), [])

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self.tables, self.dialect, self.own_types)


Derived = TypeVar("Derived")


def derived(compute: Callable[[Schema], Derived]) -> Callable[[Schema], Derived]:
    """`compute`, whose outcome is remembered with the schema: a large one is looked through once, not for each name."""
    key = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def remembered(schema: Schema) -> Derived:
        if key not in schema._derived:
            schema._derived[key] = compute(schema)
        found: Derived = schema._derived[key]
        return found

    return remembered


@derived
def _tables_by_name(schema: Schema) -> dict[str, Table]:
    at = {".".join(table.path).casefold(): table for table in reversed(schema.tables) if table.path}
    return at | {table.name.casefold(): table for table in reversed(schema.tables)}


@derived
def _owners(schema: Schema) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for table in schema.tables:
        for name in dict.fromkeys(column.name.casefold() for column in table.columns):
            owners.setdefault(name, []).append(table.name)
    return owners


def in_dialect(schema: Schema, dialect: str) -> Schema:
    """The same schema for another dialect of SQL; of one schema always the same object."""
    return (
        schema
        if dialect == schema.dialect
        else _in_dialects(schema).setdefault(dialect, replace(schema, dialect=dialect))
    )


@derived
def _in_dialects(schema: Schema) -> dict[str, Schema]:
    return {}


def words_of(text: str | None) -> frozenset[str]:
    """The words of an expression or a name, ignoring case."""
    return frozenset(re.findall(r"\w+", (text or "").casefold()))
