"""A SQLite file, opened so that no statement can change it, attach another, load code or read its catalogue.

Locks: `mode=ro`, `query_only`, `trusted_schema=OFF`, an authorizer that allows SELECT, READ of plain tables, FUNCTION except
those never allowed, and RECURSIVE; and limits on the length of values and patterns. Every query has its own connection (about
0.2 ms), so threads share nothing. SQLite has no memory limit per connection (`hard_heap_limit` binds the whole process for
good), so a value may take 1/32 of `memory_limit_mb`, rows together all of it, and sorts spill to temporary files.

Opening a file in WAL mode read-only makes SQLite write `-wal` and `-shm` files beside it. Without a pending `-wal` it is
therefore opened as immutable; with one, or with a pending rollback journal, a private copy is recovered and opened instead.
"""

import re
import shutil
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

from tools.databases.guarded_database import GuardedDatabase, stop_error
from tools.databases.reading.fetch_rows import BATCH, fetch_rows
from tools.databases.reading.query_errors import query_error
from tools.databases.sqlite.sqlite_schema import quoted, read_schema
from tools.guard.allowed_functions import never
from tools.processes.temporary_folders import new_folder, remove_folder
from tools.processes.watchdog import Watchdog
from tools.result import Limits, OpenError, QueryError, Result
from tools.schema import Schema

MAGIC = b"SQLite format 3\0"
_WAL_VERSION = 2
_SYSTEM_TABLE = re.compile(r"^(?:sqlite_|pragma_|dbstat$|fts3tokenize$|bytecode$|tables_used$)", re.IGNORECASE)
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

    @property
    def location(self) -> str:
        return str(self._path)

    @classmethod
    def reopened(cls, location: str, name: str) -> Self:
        return cls(Path(location), name)

    def close(self) -> None:
        """Stop what runs and remove a private copy."""
        self._closed = True
        self.interrupt()
        self._file.close()

    def _run(self, sql: str, limits: Limits, prefix: str = "") -> Result | QueryError:
        """Run `prefix + sql` past the engine's own locks alone."""
        if self._closed:
            return QueryError("connection", f"{self.name} is closed")
        started = time.perf_counter()
        watchdog = None
        try:
            with (
                self._locked_connection(limits) as connection,
                self._registered(Watchdog(limits.deadline_s, connection.interrupt)) as watchdog,
                watchdog,
            ):
                cursor = connection.execute(prefix + sql)
                if cursor.description is None:
                    return QueryError("refused", "refused by SQLite: only statements that return rows are run")
                rows, truncated = fetch_rows(cursor.fetchmany, limits)
                columns = tuple(entry[0] for entry in cursor.description)
            wall_ms = (time.perf_counter() - started) * 1000
            return Result(columns, _types(rows, len(columns)), rows, truncated, wall_ms)
        except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError) as error:
            return self._as_data(error, watchdog, sql, limits)

    def _as_data(self, error: Exception, watchdog: Watchdog | None, sql: str, limits: Limits) -> QueryError:
        stopped = stop_error(watchdog.reason if watchdog else None, error, limits)
        return stopped or query_error(str(error), sql, self.schema())

    def _read_schema(self) -> Schema:
        return self._file.schema()

    @contextmanager
    def _locked_connection(self, limits: Limits) -> Iterator[sqlite3.Connection]:
        with closing(self._file.connect()) as connection:
            for limit, value in _LIMITS.items():
                connection.setlimit(limit, value)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, (limits.memory_limit_mb << 20) // BATCH)
            for name in ("json_each", "json_tree", *self._file.virtual_tables):
                connection.execute(
                    f"SELECT 1 FROM {quoted(name)} LIMIT 0"
                )  # their set-up asks for more than a query may
            connection.execute("PRAGMA query_only = ON")
            connection.set_authorizer(_authorize)
            yield connection


class ReadOnlyFile:
    """A SQLite file and the one way to connect to it that leaves its folder alone. Raises OpenError when it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._remove_copy: Callable[[], object] = _nothing
        self._uri = self._choose_uri(path)
        try:
            with closing(self.connect()) as connection:
                entries = connection.execute("SELECT name, type, coalesce(sql, '') FROM sqlite_master").fetchall()
        except sqlite3.Error as error:
            self.close()
            raise OpenError(_cannot_open(path, error)) from error
        self.views = frozenset(name for name, kind, _ in entries if kind == "view")
        self.virtual_tables = frozenset(name for name, _, sql in entries if sql.upper().startswith("CREATE VIRTUAL"))

    def connect(self) -> sqlite3.Connection:
        """A new connection that trusts nothing in the file; text that is not UTF-8 is decoded as the evaluators do."""
        connection = sqlite3.connect(self._uri, uri=True, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.text_factory = lambda raw: raw.decode(errors="ignore")
        return connection

    def schema(self) -> Schema:
        """Read the schema anew."""
        try:
            with closing(self.connect()) as connection:
                return Schema(read_schema(connection), "sqlite")
        except sqlite3.Error as error:
            raise OpenError(f"cannot read the tables of this SQLite file: {error}") from error

    def close(self) -> None:
        """Remove the private copy, if there is one."""
        self._remove_copy()

    def _choose_uri(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                header = file.read(20)
            pending = any(_size(Path(f"{path}{suffix}")) for suffix in ("-wal", "-journal"))
            if pending:
                folder = new_folder()
                self._remove_copy = weakref.finalize(self, remove_folder, folder)
                return _uri(_recovered_copy(path, folder), "mode=ro")
        except OSError as error:
            raise OpenError(f"cannot read {path}: {error.strerror or error}") from error
        if not header.startswith(MAGIC):
            raise OpenError(f"{path} is not a SQLite database")
        return _uri(path, "mode=ro&immutable=1" if header[18] == _WAL_VERSION else "mode=ro")


def _nothing() -> None:
    """What closing a file that was not copied takes."""


def _uri(path: Path, options: str) -> str:
    return f"file:{quote(str(path.absolute()))}?{options}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _recovered_copy(path: Path, folder: Path) -> Path:
    """A copy in `folder` of the file and of its pending writes, which SQLite then finishes or undoes there."""
    copy = folder / "copy.sqlite"
    for suffix in ("", "-wal", "-journal"):
        source = Path(f"{path}{suffix}")
        if source.exists():
            shutil.copyfile(source, f"{copy}{suffix}")
    with closing(sqlite3.connect(copy)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            raise OpenError(_cannot_open(path, error)) from error
    return copy


def _cannot_open(path: Path, error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return f"{path} is being written by another program; try again when it is done"
    return f"cannot open {path} as a SQLite database: {error}"


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Allow what a SELECT over plain tables needs, and nothing else."""
    allowed = (
        action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
        or (action == sqlite3.SQLITE_READ and not _SYSTEM_TABLE.match(first or ""))
        or (action == sqlite3.SQLITE_FUNCTION and not never((second or "").lower()))
        or (
            action == sqlite3.SQLITE_PRAGMA and first == "data_version" and second is None
        )  # full-text search asks this
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _types(rows: tuple[tuple[object, ...], ...], width: int) -> tuple[str, ...]:
    """SQLite types values, not columns: a column is called by the storage class of its first value."""
    firsts = (next((row[index] for row in rows if row[index] is not None), None) for index in range(width))
    return tuple(_TYPES.get(type(value), "NULL") for value in firsts)
