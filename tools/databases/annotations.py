"""A database with what people wrote about it: which columns refer to others, and what columns mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tools.databases.choices import keep_values_alike
from tools.databases.database import Database, Distinct
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
from tools.schema import ColumnRef, ForeignKey, Schema, Table


@dataclass(frozen=True, slots=True)
class Relation:
    """The column `of` refers to the column `to`."""

    of: ColumnRef
    to: ColumnRef


@dataclass(frozen=True, slots=True)
class Annotations:
    """Relations besides those that the database declares, and descriptions by (table, column), which take the place of the
    database's own comments."""

    relations: tuple[Relation, ...] = ()
    descriptions: Mapping[ColumnRef, str] = field(default_factory=dict)


class AnnotatedDatabase:
    """`database` with annotations in its schema; see `tools.databases.database.Database`.

    Raises OpenError for annotations of columns that it lacks.
    """

    def __init__(self, database: Database, annotations: Annotations) -> None:
        self.name, self.dialect = database.name, database.dialect
        self._database = database
        self._schema = _annotated(database.schema(), annotations)

    def schema(self) -> Schema:
        """The schema with the annotations."""
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

    def plan(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """See `Database.plan`."""
        return self._database.plan(sql, limits)

    def distinct(self, wanted: Distinct, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """See `Database.distinct`."""
        return self._database.distinct(wanted, limits)

    def prepare(self) -> None:
        """Get ready for the first query."""
        self._database.prepare()

    def interrupt(self) -> None:
        """See `Database.interrupt`."""
        self._database.interrupt()

    def close(self) -> None:
        """See `Database.close`."""
        self._database.close()


def with_annotations(database: Database, annotations: Annotations) -> Database:
    """The database with these annotations; the same where there are none. Raises OpenError."""
    if not (annotations.relations or annotations.descriptions):
        return database
    annotated = AnnotatedDatabase(database, annotations)
    keep_values_alike(annotated, database)
    return annotated


def _annotated(schema: Schema, annotations: Annotations) -> Schema:
    relations = []
    for relation in annotations.relations:
        ends = (_known(schema, ref, "a relation is declared with") for ref in (relation.of, relation.to))
        relations.append(Relation(*ends))
    said = {
        _folded(_known(schema, ref, "a description is given of")): text
        for ref, text in annotations.descriptions.items()
    }
    described = (_described(table, said) for table in schema.tables)
    return replace(schema, tables=tuple(_with_keys(table, schema, relations) for table in described))


def _known(schema: Schema, ref: ColumnRef, what: str) -> ColumnRef:
    """The column under the schema's name of its table."""
    table = schema.table(ref[0])
    if table is None or table.column(ref[1]) is None:
        raise OpenError(f"{what} {ref[0]}.{ref[1]}, which is not in this database")
    return table.name, ref[1]


def _folded(ref: ColumnRef) -> ColumnRef:
    return ref[0].casefold(), ref[1].casefold()


def _described(table: Table, said: Mapping[ColumnRef, str]) -> Table:
    columns = (replace(c, comment=said.get(_folded((table.name, c.name)), c.comment)) for c in table.columns)
    return replace(table, columns=tuple(columns))


def _with_keys(table: Table, schema: Schema, relations: Sequence[Relation]) -> Table:
    keys = list(table.foreign_keys)
    for relation in relations:
        there = schema.table(relation.to[0])
        column, ref = table.column(relation.of[1]), there.column(relation.to[1]) if there else None
        if table.name.casefold() == relation.of[0].casefold() and column and there and ref:
            key = ForeignKey((column.name,), there.name, (ref.name,))
            keys += [key] if key not in keys else []
    return replace(table, foreign_keys=tuple(keys))
