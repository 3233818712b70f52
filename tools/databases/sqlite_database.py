"""A SQLite file, opened so that no statement can change it, attach another, load code or read its catalogue.

Locks: `mode=ro`, `query_only`, `trusted_schema=OFF`, an authorizer that allows SELECT, READ of plain tables, FUNCTION except
those never allowed, and RECURSIVE, but no READ of what is hidden (`SQLiteReads`); and limits on the length of values and
patterns. Every query has its own connection (about 0.2 ms), so threads share nothing. SQLite has no memory limit per connection
(`hard_heap_limit` binds the whole process for good), so a value may take 1/32 of `memory_limit_mb`, rows together all of it,
and sorts spill to temporary files. How the file is opened, so that others may write it and nothing is left next to it, is in
`read_only_file`.

`SQLiteReads` is the second lock of hidden tables and columns, which parses no SQL. SQLite asks the authorizer about every
column that a statement reads, by the name of its table. A visible view may read what it read when the schema was read; SQLite
names the view then.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tools.databases.choices import BATCH, fetch_rows
from tools.databases.engine_errors import query_error, stop_error
from tools.databases.files.file_kinds import files_of, is_url, name_of, names_a_file
from tools.databases.guarded_database import GuardedDatabase
from tools.databases.read_only_file import ReadOnlyFile, quoted
from tools.guard.allowed import never
from tools.processes import Watchdog
from tools.result import Limits, OpenError, QueryError, Result
from tools.schema import Schema, Table

_SYSTEM_TABLE = re.compile(r"^(?:sqlite_|pragma_|dbstat$|fts3tokenize$|bytecode$|tables_used$)", re.IGNORECASE)
_ROW_SOURCES = {"json_each", "json_tree"}

_Read = tuple[str, str, str]  # table, column ("" where rows are only counted), view


@dataclass(frozen=True, slots=True)
class SQLiteReads:
    """What may be read; all names in lower case.

    `columns`: by table; None where all of them may be read. `hidden`: the names of all else in the file. `kept`: those in which
    visible virtual tables keep their rows. `in_views`: what visible views read besides.
    """

    columns: dict[str, frozenset[str] | None]
    hidden: frozenset[str]
    kept: frozenset[str]
    in_views: frozenset[_Read]

    @classmethod
    def of(cls, seen: Schema, whole: Schema, file: ReadOnlyFile, in_views: frozenset[_Read]) -> "SQLiteReads":
        """For those who see `seen` of `whole`, which is in this file."""
        columns = {table.name.lower(): _visible(table, whole) for table in seen.tables}
        keeping = tuple(f"{name.lower()}_" for name in file.virtual_tables if name.lower() in columns)
        known = {table.name.lower() for table in whole.tables}
        names = {name.lower() for name in file.names} - columns.keys()
        kept = {name for name in names - known if keeping and name.startswith(keeping)}
        return cls(columns, frozenset(names - kept), frozenset(kept), in_views)

    def may(self, table: str, column: str, view: str) -> bool:
        """Whether the column, "" for the mere number of rows, may be read; `view`: on whose behalf, "" for none.

        SQLite asks after no column of what the statement named itself; of that it asks for the number of rows alone.
        """
        table, column, view = table.lower(), column.lower(), view.lower()
        if view and (table, column, view) in self.in_views:
            return True
        if table in self.columns:
            visible = self.columns[table]
            return visible is None or not column or column in visible
        return table in self.kept or table in _ROW_SOURCES or (not column and table not in self.hidden)


def _visible(table: Table, whole: Schema) -> frozenset[str] | None:
    original = whole.table(table.name)
    is_whole = original is not None and len(original.columns) == len(table.columns)
    return None if is_whole else frozenset(column.name.lower() for column in table.columns)


def authorizer(reads: SQLiteReads | None) -> Callable[..., int]:
    """Allows what a SELECT over plain tables needs, and nothing else; with `reads`, of these tables and columns alone."""

    def authorize(action: int, first: str | None, second: str | None, _: str | None, view: str | None) -> int:
        allowed = (
            action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            or (
                action == sqlite3.SQLITE_READ
                and not _SYSTEM_TABLE.match(first or "")
                and (reads is None or reads.may(first or "", second or "", view or ""))
            )
            or (action == sqlite3.SQLITE_FUNCTION and not never((second or "").lower()))
            or (
                action == sqlite3.SQLITE_PRAGMA and first == "data_version" and second is None
            )  # full-text search asks this
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return authorize


def reads_of(connection: sqlite3.Connection, statements: Iterable[str]) -> frozenset[_Read]:
    """What the statements read, by SQLite's own account. One that SQLite cannot read counts for nothing."""
    found: set[_Read] = set()

    def note(action: int, first: str | None, second: str | None, _: str | None, view: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            found.add(((first or "").lower(), (second or "").lower(), (view or "").lower()))
        return sqlite3.SQLITE_OK

    connection.set_authorizer(note)
    try:
        for statement in statements:
            try:
                connection.execute(f"EXPLAIN {statement}").fetchall()
            except sqlite3.Error:
                continue
    finally:
        connection.set_authorizer(None)
    return frozenset(found)


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
        super().hold_to(seen)
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


def open_sqlite(sources: Sequence[str]) -> SQLiteDatabase:
    """The one SQLite file that the sources name. Raises OpenError."""
    if is_url(sources[0]) and not names_a_file(sources[0]):
        raise OpenError("the sqlite engine opens files; open a URL with engine auto")
    files = files_of(sources)
    path, kind = files[0]
    if len(files) > 1 or kind != "sqlite":
        raise OpenError("the sqlite engine opens one SQLite file; use engine auto for anything else")
    return SQLiteDatabase(path, name_of(sources))
