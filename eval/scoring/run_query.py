"""Runs queries for the scoring process: SQLite with the standard library, others through `tools.databases.database`.

All are read-only. Other engines' rows are converted to SQLite's types, because gold queries always run in SQLite.
"""

import math
import sqlite3
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from tools.databases.database import Database

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
    from eval.scoring.server_copies import open_copy

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
