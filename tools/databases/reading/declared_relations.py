"""A database with relations that a person declared, where the database itself declares none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tools.databases.database import Database
from tools.databases.reading.kept_values import keep_values_alike
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
from tools.schema import ColumnRef, ForeignKey, Schema, Table


@dataclass(frozen=True, slots=True)
class Relation:
    """The column `of` refers to the column `to`."""

    of: ColumnRef
    to: ColumnRef


class RelatedDatabase:
    """`database` with further foreign keys in its schema; see `tools.databases.database.Database`.

    Raises OpenError for relations between columns that it lacks.
    """

    def __init__(self, database: Database, relations: Sequence[Relation]) -> None:
        self.name, self.dialect = database.name, database.dialect
        self._database, self._relations = database, tuple(relations)
        self._schema = _related(database.schema(), self._relations)

    def schema(self) -> Schema:
        """The schema with the declared relations."""
        return self._schema

    def hold_to(self, seen: Schema) -> None:
        """See `Database.hold_to`."""
        self._database.hold_to(seen)
        self._schema = seen

    def execute(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """See `Database.execute`."""
        return self._database.execute(sql, limits)

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """See `Database.explain`."""
        return self._database.explain(sql, limits)

    def prepare(self) -> None:
        """Get ready for the first query."""
        self._database.prepare()

    def interrupt(self) -> None:
        """See `Database.interrupt`."""
        self._database.interrupt()

    def close(self) -> None:
        """See `Database.close`."""
        self._database.close()


def with_relations(database: Database, relations: Sequence[Relation]) -> Database:
    """The database with these relations; the same where there are none. Raises OpenError."""
    if not relations:
        return database
    related = RelatedDatabase(database, relations)
    keep_values_alike(related, database)
    return related


def _related(schema: Schema, relations: Sequence[Relation]) -> Schema:
    for relation in relations:
        for table, column in (relation.of, relation.to):
            found = schema.table(table)
            if found is None or found.column(column) is None:
                raise OpenError(f"a relation is declared with {table}.{column}, which is not in this database")
    return replace(schema, tables=tuple(_with_keys(table, schema, relations) for table in schema.tables))


def _with_keys(table: Table, schema: Schema, relations: Sequence[Relation]) -> Table:
    keys = list(table.foreign_keys)
    for relation in relations:
        there = schema.table(relation.to[0])
        column, ref = table.column(relation.of[1]), there.column(relation.to[1]) if there else None
        if table.name.casefold() == relation.of[0].casefold() and column and there and ref:
            key = ForeignKey((column.name,), there.name, (ref.name,))
            keys += [key] if key not in keys else []
    return replace(table, foreign_keys=tuple(keys))
