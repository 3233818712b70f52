"""Runs gold and predicted queries, on SQLite or on copies at a server.

All are read-only. Other engines' rows are converted to SQLite's types, because gold queries always run in SQLite.

Types are those that the file's columns have in DuckDB, and texts are compared byte by byte, as SQLite does, so that what is
measured is the SQL and not a collation. Keys that are declared and hold are made as well; foreign keys, which many files break,
are told to the agent (`tools.databases.annotations`).
"""

import hashlib
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from tools.databases.annotations import Annotations, Relation, with_annotations
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Limits, QueryError
from tools.schema import Column, Schema, Table

Row = tuple[object, ...]

# An authorizer that allows only these refuses writes, but also ATTACH, PRAGMA and temporary tables, which mode=ro allows.
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_MAX_ROWS = 1_000_000
_DUCKDB_MEMORY_MB = 1024
_SIGNIFICANT_DIGITS = 10


class QueryFailedError(Exception):
    """A query failed; the message is the engine's, on one line."""


def connect(database: str, *, lenient: bool) -> sqlite3.Connection:
    """A read-only connection. `lenient` drops bytes that are not UTF-8, as Spider's script does; BIRD's fails on them."""
    connection = sqlite3.connect(f"file:{quote(database)}?mode=ro", uri=True)
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
    if lenient:
        connection.text_factory = lambda data: data.decode(errors="ignore")
    return connection


def run_sqlite(database: str, sql: str, *, lenient: bool) -> list[Row]:
    """Every row of one statement. Raises `QueryFailedError`; running out of memory stays a MemoryError."""
    try:
        connection = connect(database, lenient=lenient)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        raise QueryFailedError(_line(error)) from error


class CopyingEngine:
    """Copies SQLite files into another engine. The last one stays open, because the questions of a database come in a row."""

    def __init__(self) -> None:
        self._open: tuple[tuple[str, str], Database] | None = None

    def load(self, database: str, engine: str) -> None:
        """Load the file on which `run` then runs queries. Raises `QueryFailedError` if the engine cannot load it."""
        from tools.result import OpenError

        if self._open and self._open[0] == (database, engine):
            return
        self.close()
        try:
            self._open = ((database, engine), opened_copy(Path(database), engine))
        except OpenError as error:
            raise QueryFailedError(_line(error)) from error

    def run(self, sql: str, deadline_s: float) -> list[Row]:
        """Every row of one statement on the loaded file. Raises `QueryFailedError`, also if there are over a million rows."""
        if not self._open:
            raise QueryFailedError("no database is loaded")
        return rows_of(self._open[1], sql, deadline_s)

    def close(self) -> None:
        """Close the loaded file."""
        if self._open:
            self._open[1].close()
        self._open = None


def opened_copy(file: Path, engine: str) -> "Database":
    """The file in `engine`: "sqlite", "duckdb", or the URL of a server that it is copied to. Raises OpenError."""
    from tools.databases.open_database import open_database

    if "://" not in engine:
        return open_database(file, engine=engine)

    return open_copy(file, engine)


def rows_of(database: "Database", sql: str, deadline_s: float) -> list[Row]:
    """Every row of one statement on an open database. Raises `QueryFailedError`, also if there are over a million rows."""
    from tools.result import Limits, QueryError

    result = database.execute(sql, Limits(deadline_s, _MAX_ROWS, _DUCKDB_MEMORY_MB))
    if isinstance(result, QueryError):
        raise QueryFailedError(_line(result.message))
    if result.truncated:
        raise QueryFailedError(f"more than {_MAX_ROWS} rows")
    return list(result.rows)


def comparable(rows: Iterable[Row]) -> list[Row]:
    """Rows of either engine in one set of types, so that equal results of SQLite and DuckDB compare as equal.

    Decimals and booleans become numbers; numbers keep 10 significant digits (the engines sum in different orders);
    whole floats become integers; NaN becomes NULL, as SQLite stores it; dates and times become ISO text with a space
    between them; every other value becomes its text.
    """
    return [tuple(_comparable(cell) for cell in row) for row in rows]


def _comparable(cell: object) -> object:
    if cell is None or isinstance(cell, (str, bytes)):
        return cell
    if isinstance(cell, int):
        return int(cell)
    if isinstance(cell, (float, Decimal)):
        return _comparable_number(float(cell))
    if isinstance(cell, timedelta):  # what MySQL's driver makes of a time of day
        return (datetime.min + cell).time().isoformat() if timedelta(0) <= cell < timedelta(1) else str(cell)
    if isinstance(cell, datetime):
        return cell.isoformat(sep=" ")
    if isinstance(cell, (date, time)):
        return cell.isoformat()
    return str(cell)


def _comparable_number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None if math.isnan(value) else value
    rounded = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _line(error: object) -> str:
    return " ".join(str(error).split())


_ROWS_AT_ONCE = 1000
_LOADING = Limits(deadline_s=600.0, max_rows=10_000_000)
_COPYING = Lock()  # questions that are asked at once share the copy of their file
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
    with closing(open_database(file, engine="duckdb")) as source, _COPYING:
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
