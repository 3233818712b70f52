"""Reads the schema of any SQLAlchemy connection by bulk reflection, with bounded row counts and samples."""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.reflection import Inspector, ObjectKind

from tools.samples import MAX_LENGTH, ROWS_LOOKED_AT, samples
from tools.schema import Column, ForeignKey, Table

COUNTED_ROWS = 100_000
"""A server may hold billions of rows: counting stops here, and a larger table's count stays unknown."""

_MANY_SCHEMAS = {"postgresql", "mssql"}
_SYSTEM_SCHEMA = ("information_schema", "pg_", "sys", "db_", "guest", "INFORMATION_SCHEMA")
_Key = tuple[str | None, str]


def read_schema(connection: sa.Connection) -> tuple[Table, ...]:
    """The tables, then the views, of the default schema and, where one database holds several, of the others.

    Outside the default schema a name carries its schema, "sales.orders". Raises SQLAlchemyError.
    """
    inspector = sa.inspect(connection)
    return tuple(
        table for schema in _schemas(connection, inspector) for table in _tables(connection, inspector, schema)
    )


def _schemas(connection: sa.Connection, inspector: Inspector) -> list[str | None]:
    if connection.dialect.name not in _MANY_SCHEMAS:
        return [None]
    default = inspector.default_schema_name
    others = [name for name in inspector.get_schema_names() if name != default and not name.startswith(_SYSTEM_SCHEMA)]
    return [None, *sorted(others)]


def _tables(connection: sa.Connection, inspector: Inspector, schema: str | None) -> Iterator[Table]:
    columns = inspector.get_multi_columns(schema=schema, kind=ObjectKind.ANY)
    primary = inspector.get_multi_pk_constraint(schema=schema)
    foreign = inspector.get_multi_foreign_keys(schema=schema)
    comments = _comments(inspector, schema)
    stored = set(inspector.get_table_names(schema=schema))
    for key in sorted(columns, key=lambda key: (key[1] not in stored, key[1])):
        in_key = primary[key]["constrained_columns"] if key in primary else ()
        yield Table(
            _shown_name(key),
            tuple(_columns(connection, key, columns[key], set(in_key))),
            tuple(_foreign_key(entry) for entry in foreign.get(key, ())),
            comments.get(key) or "",
            _count(connection, key) if key[1] in stored else None,
        )


def _comments(inspector: Inspector, schema: str | None) -> dict[Any, str | None]:
    try:
        found = inspector.get_multi_table_comment(schema=schema, kind=ObjectKind.ANY)
    except NotImplementedError:  # the dialect has no comments
        return {}
    return {key: entry.get("text") for key, entry in found.items()}


def _shown_name(key: _Key) -> str:
    return f"{key[0]}.{key[1]}" if key[0] else key[1]


def _foreign_key(entry: Any) -> ForeignKey:
    target = (entry["referred_schema"], entry["referred_table"])
    return ForeignKey(tuple(entry["constrained_columns"]), _shown_name(target), tuple(entry["referred_columns"]))


def _columns(connection: sa.Connection, key: _Key, entries: list[Any], in_key: set[str]) -> Iterator[Column]:
    values = _samples(connection, key, entries)
    for entry, value in zip(entries, values, strict=True):
        name, is_key = entry["name"], entry["name"] in in_key
        nullable = bool(entry.get("nullable", True)) and not is_key
        yield Column(name, _type_name(connection, entry["type"]), is_key, nullable, entry.get("comment") or "", value)


def _type_name(connection: sa.Connection, type_: sa.types.TypeEngine[Any]) -> str:
    try:
        return type_.compile(connection.dialect)
    except sa.exc.CompileError:  # a type that SQLAlchemy does not know
        return ""


def _table(key: _Key, columns: list[Any]) -> sa.TableClause:
    return sa.table(key[1], *(sa.column(entry["name"], entry["type"]) for entry in columns), schema=key[0])


def _count(connection: sa.Connection, key: _Key) -> int | None:
    some = sa.select(sa.literal(1).label("one")).select_from(_table(key, [])).limit(COUNTED_ROWS + 1).subquery()
    rows = _try(connection, sa.select(sa.func.count()).select_from(some))
    return int(rows[0][0]) if rows and rows[0][0] <= COUNTED_ROWS else None


def _samples(connection: sa.Connection, key: _Key, entries: list[Any]) -> list[tuple[str, ...]]:
    table = _table(key, entries)
    shown = [_short(table.c[entry["name"]]).label(f"c{position}") for position, entry in enumerate(entries)]
    return samples(_try(connection, sa.select(*shown).limit(ROWS_LOOKED_AT)), len(entries))


def _short(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    if isinstance(column.type, sa.LargeBinary):
        return sa.null()
    if isinstance(column.type, sa.Enum) or not isinstance(column.type, sa.String):
        return column
    return sa.func.substr(column, 1, MAX_LENGTH + 1)


def _try(connection: sa.Connection, query: sa.Select[Any]) -> list[Any]:
    """The rows, or none where the table may be listed but not read."""
    try:
        with connection.begin_nested():
            return list(connection.execute(query).fetchall())
    except sa.exc.SQLAlchemyError:
        return []
