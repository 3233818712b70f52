"""Renames schemas and queries: a mapping of names is applied scope by scope, and can be undone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from eval.datasets.golds.gold_sql import found, identifier, is_output, place_of, real_tables
from tools.linking.match_values import ValueMatch
from tools.schema import Schema, Table
from tools.sql.scope import first_select


@dataclass(frozen=True, slots=True)
class Naming:
    """New names of tables by old name, and of columns by (old table, old column). Everything else keeps its name."""

    tables: Mapping[str, str]
    columns: Mapping[tuple[str, str], str]

    def table(self, name: str) -> str:
        return self.tables.get(name, name)

    def column(self, table: str, name: str) -> str:
        return self.columns.get((table, name), name)

    def undone(self) -> "Naming":
        """The inverse mapping."""
        columns = {(self.table(table), new): old for (table, old), new in self.columns.items()}
        return Naming({new: old for old, new in self.tables.items()}, columns)


def rename_schema(schema: Schema, naming: Naming) -> Schema:
    """The schema under its new names."""
    return replace(schema, tables=tuple(_renamed(table, naming) for table in schema.tables))


def _renamed(table: Table, naming: Naming) -> Table:
    columns = tuple(replace(column, name=naming.column(table.name, column.name)) for column in table.columns)
    keys = tuple(
        replace(
            key,
            columns=tuple(naming.column(table.name, name) for name in key.columns),
            ref_table=naming.table(key.ref_table),
            ref_columns=tuple(naming.column(key.ref_table, name) for name in key.ref_columns),
        )
        for key in table.foreign_keys
    )
    return replace(table, name=naming.table(table.name), columns=columns, foreign_keys=keys)


def rename_values(values: Sequence[ValueMatch], naming: Naming) -> tuple[ValueMatch, ...]:
    """The matches under the new names."""
    return tuple(replace(v, table=naming.table(v.table), column=naming.column(v.table, v.column)) for v in values)


def rename_sql(tree: exp.Query, schema: Schema, naming: Naming) -> exp.Query:
    """A copy of the query under the new names; `schema` has the old ones."""
    copy = tree.copy()
    columns = [(column, *_new_names(column, schema, naming)) for column in copy.find_all(exp.Column)]
    tables = [(table, naming.table(name)) for table, name in real_tables(copy, schema)]
    for column, name, qualifier in columns:
        if name:
            column.set("this", identifier(name))
        if qualifier:
            column.set("table", identifier(qualifier))
    for table, name in tables:
        table.set("this", identifier(name))
    return copy


def _new_names(column: exp.Column, schema: Schema, naming: Naming) -> tuple[str, str]:
    """The column's new name and qualifier; an empty one stays empty."""
    home = None if is_output(column) else found(column, schema)
    if home is None:
        return "", ""
    table = home[1].table
    called_by_name = table is not None and column.table.casefold() == table.name.casefold()
    qualifier = naming.table(table.name) if table is not None and called_by_name else ""
    place = _origin(column, schema)
    return naming.column(*place) if place and not column.is_star else "", qualifier


def _origin(column: exp.Column, schema: Schema) -> tuple[str, str] | None:
    """(table, column) from which the column comes, also through a subquery that does not rename it."""
    home = found(column, schema)
    if home is None or home[1].table is not None:
        return place_of(column, schema)
    origin = home[1].columns.get(column.name.casefold())
    if isinstance(origin, exp.Column) and first_select(origin.parent_select or origin) is not None:
        return _origin(origin, schema)
    return None
