"""A SQLite file, opened so that no statement can change it, attach another, load code or read its catalogue.

Locks: `mode=ro`, `query_only`, `trusted_schema=OFF`, an authorizer that allows SELECT, READ of plain tables, FUNCTION except
those never allowed, and RECURSIVE, but no READ of what is hidden (`sqlite_reads.py`); and limits on the length of values and
patterns. Every query has its own connection (about 0.2 ms), so threads share nothing. SQLite has no memory limit per
connection (`hard_heap_limit` binds the whole process for good), so a value may take 1/32 of `memory_limit_mb`, rows together
all of it, and sorts spill to temporary files.

How the file is opened, so that others may write it and nothing is left beside it, is in `read_only_file`.
"""

import sqlite3
import time
from pathlib import Path
from typing import Self

from tools.databases.guarded_database import GuardedDatabase, stop_error
from tools.databases.reading.fetch_rows import BATCH, fetch_rows
from tools.databases.reading.query_errors import query_error
from tools.databases.sqlite.read_only_file import ReadOnlyFile
from tools.databases.sqlite.sqlite_reads import SQLiteReads, authorizer, reads_of
from tools.databases.sqlite.sqlite_schema import quoted
from tools.processes.watchdog import Watchdog
from tools.result import Limits, OpenError, QueryError, Result
from tools.schema import Schema

_LIMITS = {
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_TYPES = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


class SQLiteDatabase(GuardedDatabase):
    """One SQLite file, read-only, in SQLite's own dialect."""

    dialect = "sqlite"

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(name, "EXPLAIN QUERY PLAN ")
        self._path = path
        self._file = ReadOnlyFile(path)
        self._closed = False
        self._reads: SQLiteReads | None = None

    @property
    def location(self) -> str:
        return str(self._path)

    @classmethod
    def reopened(cls, location: str, name: str) -> Self:
        return cls(Path(location), name)

    def hold_to(self, seen: Schema) -> None:
        """The authorizer lets nothing else be read; see `Database.hold_to`."""
        views = [table.name for table in seen.tables if table.name in self._file.views]
        statements = [f"SELECT * FROM {quoted(name)}" for name in views]
        in_views = self._file.stable(lambda connection: reads_of(connection, statements))
        self._reads = SQLiteReads.of(seen, self.schema(), self._file, in_views)

    def close(self) -> None:
        """Stop what runs and remove a private copy."""
        self._closed = True
        self.interrupt()
        self._file.close()

    def _run(self, sql: str, limits: Limits, prefix: str = "") -> Result | QueryError:
        """Run `prefix + sql` past the engine's own locks alone."""
        if self._closed:
            return QueryError("connection", f"{self.name} is closed")
        started, watchdog = time.perf_counter(), None

        def read(connection: sqlite3.Connection) -> Result | QueryError:
            nonlocal watchdog
            left_s = max(0.0, limits.deadline_s - (time.perf_counter() - started))
            with self._registered(Watchdog(left_s, connection.interrupt)) as watchdog, watchdog:
                self._lock_up(connection, limits)
                return _fetched(connection, prefix + sql, limits, started)

        try:
            return self._file.stable(read)
        except OpenError as error:
            return QueryError("connection", str(error))
        except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError) as error:
            return self._as_data(error, watchdog, sql, limits)

    def _as_data(self, error: Exception, watchdog: Watchdog | None, sql: str, limits: Limits) -> QueryError:
        stopped = stop_error(watchdog.reason if watchdog else None, error, limits)
        return stopped or query_error(str(error), sql, self.schema())

    def _read_schema(self) -> Schema:
        return self._file.schema()

    def _lock_up(self, connection: sqlite3.Connection, limits: Limits) -> None:
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, (limits.memory_limit_mb << 20) // BATCH)
        for name in ("json_each", "json_tree", *self._file.virtual_tables):
            connection.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 0")  # their set-up asks for more than a query may
        connection.execute("PRAGMA query_only = ON")
        connection.set_authorizer(authorizer(self._reads))


def _fetched(connection: sqlite3.Connection, sql: str, limits: Limits, started: float) -> Result | QueryError:
    cursor = connection.execute(sql)
    if cursor.description is None:
        return QueryError("refused", "refused by SQLite: only statements that return rows are run")
    rows, truncated = fetch_rows(cursor.fetchmany, limits)
    columns = tuple(entry[0] for entry in cursor.description)
    return Result(columns, _types(rows, len(columns)), rows, truncated, (time.perf_counter() - started) * 1000)


def _types(rows: tuple[tuple[object, ...], ...], width: int) -> tuple[str, ...]:
    """SQLite types values, not columns: a column is called by the storage class of its first value."""
    firsts = (next((row[index] for row in rows if row[index] is not None), None) for index in range(width))
    return tuple(_TYPES.get(type(value), "NULL") for value in firsts)
