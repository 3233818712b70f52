"""Copies of SQLite databases on a server, so that benchmarks are asked there: one database for each file, made once.

Types are those that the file's columns have in DuckDB, and texts are compared byte by byte, as SQLite does, so that what is
measured is the SQL and not a collation. Keys that are declared and hold are made as well; foreign keys, which many files break,
are told to the agent (`tools.databases.annotations`).
"""

import hashlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tools.databases.annotations import Annotations, Relation, with_annotations
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Limits, QueryError
from tools.schema import Column, Schema, Table

_ROWS_AT_ONCE = 1000
_LOADING = Limits(deadline_s=600.0, max_rows=10_000_000)
_KEY_LENGTH = 190  # characters that MySQL's keys may have
_TYPES: tuple[tuple[str, type[sa.types.TypeEngine[Any]]], ...] = (
    ("HUGEINT", sa.Numeric), ("INTERVAL", sa.Text), ("INT", sa.BigInteger), ("DOUBLE", sa.Double), ("FLOAT", sa.Double),
    ("DECIMAL", sa.Numeric), ("TIMESTAMP", sa.DateTime), ("DATE", sa.Date), ("TIME", sa.Time), ("BOOL", sa.Boolean),
    ("BLOB", sa.LargeBinary),
)  # fmt: skip


def open_copy(file: Path, url: str) -> Database:
    """The copy of the SQLite `file` at the server of `url`, whose account may make databases. Raises OpenError."""
    server = sa.make_url(url)
    name = f"{file.stem}_{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}".lower()
    with closing(open_database(file, engine="duckdb")) as source:
        if name not in _databases(server):
            _copy(source, server, name)
        relations = tuple(_relations(source.schema()))
    copied = open_database(server.set(database=name).render_as_string(hide_password=False))
    return with_annotations(copied, Annotations(relations))


def _relations(schema: Schema) -> Iterator[Relation]:
    for table in schema.tables:
        for key in table.foreign_keys:
            for column, there in zip(key.columns, key.ref_columns, strict=True):
                target = schema.table(key.ref_table)
                if target and target.column(there) and table.column(column):
                    yield Relation((table.name, column), (target.name, there))


def _databases(server: sa.URL) -> set[str]:
    is_postgresql = server.get_backend_name() == "postgresql"
    listing = "SELECT datname FROM pg_database" if is_postgresql else "SHOW DATABASES"
    engine = sa.create_engine(server)
    try:
        with engine.connect() as connection:
            return set(connection.exec_driver_sql(listing).scalars())
    finally:
        engine.dispose()


def _copy(source: Database, server: sa.URL, name: str) -> None:
    """Make the database under another name first, so that what has the name is whole."""
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        try:
            _fill(source, server.set(database=name))
        except BaseException:
            with engine.connect() as connection:
                connection.exec_driver_sql(f"DROP DATABASE {name}")
            raise
    finally:
        engine.dispose()


def _fill(source: Database, url: sa.URL) -> None:
    engine = sa.create_engine(url)
    try:
        for table in source.schema().tables:
            quoted = ", ".join('"' + column.name.replace('"', '""') + '"' for column in table.columns)
            result = source.execute(f'SELECT {quoted} FROM "{table.name}"', _LOADING)
            if isinstance(result, QueryError):
                raise RuntimeError(f"{source.name}.{table.name} cannot be read: {result.message}")
            _write(engine, table, result.rows, _key_holds(table, result.rows))
    finally:
        engine.dispose()


def _key_holds(table: Table, rows: tuple[tuple[Any, ...], ...]) -> bool:
    places = [place for place, column in enumerate(table.columns) if column.primary_key]
    keys = [tuple(str(row[place]).casefold().rstrip() for place in places) for row in rows]
    whole = all(row[place] is not None for row in rows for place in places)
    short = all(len(str(row[place])) <= _KEY_LENGTH for row in rows for place in places)
    return bool(places) and whole and short and len(set(keys)) == len(keys)


def _write(engine: sa.Engine, table: Table, rows: tuple[tuple[Any, ...], ...], has_key: bool) -> None:
    collation = _collation(engine)
    columns = [_column(each, has_key and each.primary_key, collation) for each in table.columns]
    made = sa.Table(table.name, sa.MetaData(), *columns)
    keys = [f"c{place}" for place in range(len(columns))]
    named: dict[str, Any] = {column.name: sa.bindparam(key) for column, key in zip(columns, keys, strict=True)}
    with engine.begin() as connection:
        made.create(connection)
        statement = made.insert().values(named)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            connection.execute(statement, [dict(zip(keys, row, strict=True)) for row in part])


def _collation(engine: sa.Engine) -> str | None:
    """The collation that compares byte by byte, blanks at the end included; None where the server's own does."""
    if engine.dialect.name == "postgresql":
        return None
    return "utf8mb4_nopad_bin" if getattr(engine.dialect, "is_mariadb", False) else "utf8mb4_0900_bin"


def _column(column: Column, is_key: bool, collation: str | None) -> sa.Column[Any]:
    kind = next((made for word, made in _TYPES if word in column.type.upper()), sa.Text)
    type_: sa.types.TypeEngine[Any] = kind()
    if kind is sa.Text:
        type_ = sa.String(_KEY_LENGTH, collation) if is_key else sa.Text(collation=collation)
    elif kind is sa.Numeric:
        type_ = sa.Numeric(38, 10)
    return sa.Column(column.name, type_, primary_key=is_key, nullable=not is_key, autoincrement=False)
