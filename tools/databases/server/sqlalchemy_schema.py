"""Reads the schema of any SQLAlchemy connection by bulk reflection."""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.reflection import Inspector, ObjectKind

from tools.databases.server.mysql_views import view_columns
from tools.databases.server.sqlalchemy_contents import read_contents
from tools.schema import Column, ForeignKey, Table, words_of

_MANY_SCHEMAS = {"postgresql", "mssql"}
_SYSTEM_SCHEMA = ("information_schema", "pg_", "sys", "db_", "guest", "INFORMATION_SCHEMA")
_VIEWS = {
    "postgresql": "SELECT schemaname, viewname, definition FROM pg_views UNION ALL"
    " SELECT schemaname, matviewname, definition FROM pg_matviews",
    "mysql": "SELECT table_schema, table_name, view_definition FROM information_schema.views",
    "mariadb": "SELECT table_schema, table_name, view_definition FROM information_schema.views",
}
_PARENTS = """SELECT cn.nspname, c.relname, pn.nspname, p.relname FROM pg_inherits
JOIN pg_class c ON c.oid = inhrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_class p ON p.oid = inhparent JOIN pg_namespace pn ON pn.oid = p.relnamespace"""
_OWN_TYPES = """SELECT lower(typname) FROM pg_type t LEFT JOIN pg_class c ON c.oid = typrelid
WHERE (typtype IN ('d', 'e', 'r') OR c.relkind = 'c')
AND typnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = t.oid AND d.classid = 'pg_type'::regclass AND d.deptype = 'e')"""
_Key = tuple[str | None, str]


def read_schema(connection: sa.Connection) -> tuple[Table, ...]:
    """The tables, then the views, of the default schema and, where one database holds several, of the others.

    Outside the default schema a name carries its schema, "sales.orders". Raises SQLAlchemyError.
    """
    inspector = sa.inspect(connection)
    return tuple(
        table for schema in _schemas(connection, inspector) for table in _tables(connection, inspector, schema)
    )


def own_types(connection: sa.Connection) -> frozenset[str]:
    """The types, in lower case, that were made in a PostgreSQL database and come from no extension. Raises SQLAlchemyError."""
    is_postgresql = connection.dialect.name == "postgresql"
    return frozenset(connection.exec_driver_sql(_OWN_TYPES).scalars()) if is_postgresql else frozenset()


def _schemas(connection: sa.Connection, inspector: Inspector) -> list[str | None]:
    if connection.dialect.name not in _MANY_SCHEMAS:
        return [None]
    default = inspector.default_schema_name
    others = [name for name in inspector.get_schema_names() if name != default and not name.startswith(_SYSTEM_SCHEMA)]
    return [None, *sorted(others)]


def _tables(connection: sa.Connection, inspector: Inspector, schema: str | None) -> Iterator[Table]:
    columns, told = _all_columns(connection, inspector, schema)
    primary = inspector.get_multi_pk_constraint(schema=schema)
    foreign = inspector.get_multi_foreign_keys(schema=schema)
    comments = _comments(inspector, schema, told)
    stored = set(inspector.get_table_names(schema=schema))
    views, parents = _views(connection), _parents(connection, inspector.default_schema_name)
    contents = read_contents(connection, {key: columns[key] for key in columns if key[1] in stored}, stored=True)
    contents |= read_contents(connection, {key: columns[key] for key in columns if key not in contents}, stored=False)
    for key in sorted(columns, key=lambda key: (key[1] not in stored, key[1])):
        in_key = set(primary[key]["constrained_columns"]) if key in primary else set()
        yield Table(
            _shown_name(key),
            tuple(_columns(connection, columns[key], in_key, contents[key].samples)),
            tuple(_foreign_key(entry) for entry in foreign.get(key, ())),
            comments.get(key) or "",
            contents[key].row_count,
            frozenset() if key[1] in stored else words_of(views.get((key[0] or inspector.default_schema_name, key[1]))),
            tuple(map(_shown_name, parents.get(key, ()))),
        )


def _all_columns(
    connection: sa.Connection, inspector: Inspector, schema: str | None
) -> tuple[dict[_Key, Any], ObjectKind]:
    """The columns of tables and views, and the kinds of which the server tells more."""
    try:
        return dict(inspector.get_multi_columns(schema=schema, kind=ObjectKind.ANY)), ObjectKind.ANY
    except sa.exc.OperationalError:
        if connection.dialect.name not in ("mysql", "mariadb"):
            raise
        tables = inspector.get_multi_columns(schema=schema)
        return {**tables, **view_columns(connection)}, ObjectKind.TABLE


def _views(connection: sa.Connection) -> dict[_Key, str]:
    """The SQL of the views, by schema and name, of which the server tells this account; empty for other kinds of servers."""
    query = _VIEWS.get(connection.dialect.name)
    rows = connection.exec_driver_sql(query).all() if query else []
    return {(schema, name): definition or "" for schema, name, definition in rows}


def _parents(connection: sa.Connection, default: str | None) -> dict[_Key, list[_Key]]:
    """The tables that each partition or inheriting table belongs to; empty for other kinds of servers."""
    found: dict[_Key, list[_Key]] = {}
    rows = connection.exec_driver_sql(_PARENTS).all() if connection.dialect.name == "postgresql" else []
    for schema, name, *parent in rows:
        key, of = ((None if each == default else each, table) for each, table in ((schema, name), parent))
        found.setdefault(key, []).append(of)
    return found


def _comments(inspector: Inspector, schema: str | None, kind: ObjectKind) -> dict[Any, str | None]:
    try:
        found = inspector.get_multi_table_comment(schema=schema, kind=kind)
    except NotImplementedError:  # the dialect has no comments
        return {}
    return {key: entry.get("text") for key, entry in found.items()}


def _shown_name(key: _Key) -> str:
    return f"{key[0]}.{key[1]}" if key[0] else key[1]


def _foreign_key(entry: Any) -> ForeignKey:
    target = (entry["referred_schema"], entry["referred_table"])
    return ForeignKey(tuple(entry["constrained_columns"]), _shown_name(target), tuple(entry["referred_columns"]))


def _columns(
    connection: sa.Connection, entries: Sequence[Any], in_key: set[str], samples: Sequence[tuple[str, ...]]
) -> Iterator[Column]:
    for entry, values in zip(entries, samples, strict=True):
        name, is_key = entry["name"], entry["name"] in in_key
        nullable = bool(entry.get("nullable", True)) and not is_key
        comment, made_of = entry.get("comment") or "", words_of((entry.get("computed") or {}).get("sqltext"))
        yield Column(name, _type_name(connection, entry["type"]), is_key, nullable, comment, values, made_of)


def _type_name(connection: sa.Connection, type_: sa.types.TypeEngine[Any]) -> str:
    try:
        return type_.compile(connection.dialect)
    except sa.exc.CompileError:  # a type that SQLAlchemy does not know
        return ""
