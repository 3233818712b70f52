"""Reads the schema of any SQLAlchemy connection by bulk reflection, with row counts and sample values.

These are read for a hundred tables by one query, because a round trip to a server may take long. A query that fails, for a
table that may be listed but not read, is split until the table at fault is alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.reflection import Inspector, ObjectKind

from tools.databases.choices import MAX_LENGTH, ROWS_LOOKED_AT, samples
from tools.databases.server_engines import view_columns
from tools.schema import Column, ForeignKey, Table, words_of

COUNTED_ROWS = 100_000
"""A server may hold billions of rows: counting stops here, and a larger table's count stays unknown."""
COUNTED_IN_ALL = 10_000_000
SAMPLED_IN_ALL = 20_000
TABLES_AT_ONCE = 100

Key = tuple[str | None, str]  # schema, None for the default one, and name
_Entries = Sequence[Any]  # SQLAlchemy's reflected columns


@dataclass(frozen=True, slots=True)
class Contents:
    """`row_count`: None for a view and where it is not known. `samples`: of each column, three at most."""

    row_count: int | None
    samples: list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Rows looked at in each table: fewer where there are many tables."""

    sampled: int
    counted: int  # 0: count none

    @classmethod
    def of(cls, tables: int, stored: bool) -> "_Bounds":
        counted = min(COUNTED_ROWS, COUNTED_IN_ALL // max(tables, 1)) if stored else 0
        return cls(min(ROWS_LOOKED_AT, max(10, SAMPLED_IN_ALL // max(tables, 1))), counted)


def read_contents(connection: sa.Connection, tables: Mapping[Key, _Entries], stored: bool) -> dict[Key, Contents]:
    """What the tables hold. Those that are not `stored`, the views, are asked one at a time, for one may be slow."""
    bounds = _Bounds.of(len(tables), stored)
    found: dict[Key, Contents] = {}
    keys, at_once = list(tables), TABLES_AT_ONCE if stored else 1
    for start in range(0, len(keys), at_once):
        found |= _read(connection, {key: tables[key] for key in keys[start : start + at_once]}, bounds)
    return found


def _read(connection: sa.Connection, tables: Mapping[Key, _Entries], bounds: _Bounds) -> dict[Key, Contents]:
    items = list(tables.items())
    width = max(map(len, tables.values()))
    try:
        with connection.begin_nested():
            queries = [_query(i, key, entries, width, bounds) for i, (key, entries) in enumerate(items)]
            rows = connection.execute(sa.union_all(*queries)).fetchall()
    except sa.exc.SQLAlchemyError:
        if len(items) == 1:
            return {key: Contents(None, [()] * len(entries)) for key, entries in items}
        half = len(items) // 2
        return _read(connection, dict(items[:half]), bounds) | _read(connection, dict(items[half:]), bounds)
    by_table: dict[int, list[Any]] = {i: [] for i in range(len(items))}
    for row in rows:
        by_table[row[0]].append(row)
    return {key: _contents(by_table[i], len(entries), bounds) for i, (key, entries) in enumerate(items)}


def _contents(rows: list[Any], width: int, bounds: _Bounds) -> Contents:
    count = int(rows[0][1]) if rows else 0
    known = 0 < bounds.counted >= count
    return Contents(count if known else None, samples([row[2 : 2 + width] for row in rows], width))


def _query(number: int, key: Key, entries: _Entries, width: int, bounds: _Bounds) -> sa.Select[Any]:
    """The table's number here, its row count, and its columns as short texts, padded to `width` columns."""
    table = sa.table(key[1], *(sa.column(entry["name"], entry["type"]) for entry in entries), schema=key[0])
    shown = [_short(table.c[entry["name"]]) for entry in entries] + [_NOTHING] * (width - len(entries))
    count: sa.ColumnElement[Any] = sa.literal_column("0")
    if bounds.counted:
        some = sa.select(sa.literal_column("1").label("one")).select_from(table).limit(bounds.counted + 1).subquery()
        count = sa.select(sa.func.count()).select_from(some).scalar_subquery()
    named = [column.label(f"c{place}") for place, column in enumerate(shown)]
    numbered = [sa.literal_column(str(number)).label("number"), count.label("rows"), *named]
    return sa.select(sa.select(*numbered).limit(bounds.sampled).subquery())


_TEXT = sa.String(MAX_LENGTH + 1)
_NOTHING: sa.ColumnElement[Any] = sa.cast(sa.null(), _TEXT)


def _short(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return _NOTHING if isinstance(column.type, sa.LargeBinary) else sa.cast(column, _TEXT)


MANY_SCHEMAS = {"postgresql", "mssql"}
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
    if connection.dialect.name not in MANY_SCHEMAS:
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
            path=(key[0], key[1]) if key[0] else (),
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
