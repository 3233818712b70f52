"""A DuckDB file, opened so that no statement can change it, read another file, load code or change a setting.

The recipe is DuckDB's own for untrusted SQL: read-only file, no external access, no extensions, no Python variables, bounded
memory and spill, settings locked. The file is open only while something is asked, so that other programs can write it. Every
query gets a fresh cursor and must be, by DuckDB's own parser, one SELECT. That last rule is what keeps out the statements
which a locked read-only database still runs (CREATE TEMP, SET VARIABLE, PREPARE, BEGIN, PRAGMA, CALL, LOAD, several
statements at once). The same parser says which tables and functions the SELECT names
(`DuckDBReads` in `duckdb_catalog.py`).
"""

import re
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import duckdb

from tools.databases.choices import fetch_rows
from tools.databases.duckdb_catalog import DuckDBReads, own_names, read_schema
from tools.databases.engine_errors import query_error, stop_error
from tools.databases.guarded_database import GuardedDatabase
from tools.processes import Watchdog, remove_folder, spill_folder
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
from tools.schema import Schema, Table

SCHEMA_DEADLINE_S = 60.0
SPILL_PER_MEMORY = 4
IDLE_S = 0.25
"""The file is released when nothing was asked for so long; opening it again takes 3 to 14 ms."""
WRITING_S = 5.0
"""A query waits so long for another program that writes the file, and tries again every RETRY_S."""
RETRY_S = 0.05


class FileIsWritten(OpenError):
    """Another program has the file open for writing."""


def locked_config(memory_limit_mb: int) -> dict[str, str | bool | int | float | list[str]]:
    """The settings of a connection on which untrusted SQL may run."""
    return {
        "enable_external_access": "false",
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "memory_limit": f"{memory_limit_mb}MiB",
        "temp_directory": str(spill_folder()),
        "max_temp_directory_size": f"{SPILL_PER_MEMORY * memory_limit_mb}MiB",
        "errors_as_json": "true",
        "lock_configuration": "true",
    }


@dataclass(frozen=True, slots=True)
class Copy:
    """What is known of a private copy of other files: the folder that goes with it, the order of its tables, and notes."""

    folder: Path
    order: tuple[str, ...]
    notes: Mapping[str, Table]


class DuckDBDatabase(GuardedDatabase):
    """One DuckDB file, read-only; a `copy` is removed when the database is closed, collected, or the program ends."""

    dialect = "duckdb"

    def __init__(self, path: Path, name: str, copy: Copy | None = None) -> None:
        super().__init__(name, "EXPLAIN ")
        self.path = path
        self._copy = copy
        self.has_schemas = copy is None
        self._seen: Schema | None = None
        self._own: frozenset[str] = frozenset()  # the macros and types that the file brings
        self._remove_copy = weakref.finalize(self, remove_folder, copy.folder) if copy else None
        self._memory_limit_mb = DEFAULT_LIMITS.memory_limit_mb
        self._is_closed = False
        self._connection: duckdb.DuckDBPyConnection | None = None  # while a query runs, and shortly after
        self._release: threading.Timer | None = None
        with self._cursor(DEFAULT_LIMITS):
            pass  # whether it can be opened is found out now

    def hold_to(self, seen: Schema) -> None:
        """DuckDB's own parse of a statement may name nothing else; see `Database.hold_to`."""
        super().hold_to(seen)
        limits = Limits(deadline_s=SCHEMA_DEADLINE_S, memory_limit_mb=self._memory_limit_mb)
        with self._cursor(limits) as (cursor, _):
            own, taken = own_names(cursor)
        if taken:
            raise OpenError(_has_macros(self.path, taken))
        self._seen, self._own = seen, own

    @property
    def location(self) -> str:
        return str(self.path)

    @classmethod
    def reopened(cls, location: str, name: str) -> Self:
        return cls(Path(location), name)

    def close(self) -> None:
        """Stop what runs, close the file and remove a private copy."""
        self._is_closed = True
        self.interrupt()
        with self._changed:
            self._changed.wait_for(lambda: not self._watchdogs)
            self._let_go()
        if self._remove_copy is not None:
            self._remove_copy()

    def _look_up(self, sql: str, limits: Limits) -> Result | QueryError:
        """Where nothing is hidden, the parse of a long statement that is made here is not looked through."""
        return self._run(sql, limits, is_own=self._seen is None)

    def _run(self, sql: str, limits: Limits, prefix: str = "", is_own: bool = False) -> Result | QueryError:
        """Run `prefix + sql` past the engine's own locks alone. `is_own`: the statement is no one else's."""
        started = time.perf_counter()
        try:
            with self._cursor(limits) as (cursor, watchdog):
                try:
                    objection = None if is_own else self._objection(cursor, prefix, sql)
                    return objection or _fetch(cursor, prefix + sql, limits, started)
                except (duckdb.Error, MemoryError, OverflowError, ValueError) as error:
                    return self._as_data(error, watchdog, sql, limits, len(prefix.encode()))
        except (OpenError, duckdb.ConnectionException) as error:
            return QueryError("connection", str(error))

    def _objection(self, cursor: duckdb.DuckDBPyConnection, prefix: str, sql: str) -> QueryError | None:
        reads = DuckDBReads(self.schema(), self._seen, self._own)
        return _one_select(cursor, prefix, sql) or reads.objection(cursor, sql)

    def _as_data(self, error: Exception, watchdog: Watchdog, sql: str, limits: Limits, sql_offset: int) -> QueryError:
        stopped = stop_error(watchdog.reason, error, limits)
        return stopped or query_error(str(error), sql, self.schema(), sql_offset=sql_offset)

    @contextmanager
    def _cursor(self, limits: Limits) -> Iterator[tuple[duckdb.DuckDBPyConnection, Watchdog]]:
        """A fresh cursor under a watchdog: temporary tables and variables of one query never reach the next.

        Waits while another program writes the file. Raises OpenError where that takes longer than the query may.
        """
        until_s = time.monotonic() + min(limits.deadline_s, WRITING_S)
        with ExitStack() as using:
            while (cursor := self._try(limits, using, is_last=time.monotonic() >= until_s)) is None:
                time.sleep(RETRY_S)
            with cursor[1]:
                yield cursor

    def _try(
        self, limits: Limits, using: ExitStack, is_last: bool
    ) -> tuple[duckdb.DuckDBPyConnection, Watchdog] | None:
        """A cursor and its watchdog; None where another program writes the file, unless this is the last try."""
        with self._changed:
            try:
                cursor = self._with_memory(limits.memory_limit_mb).cursor()
            except FileIsWritten:
                if is_last:
                    raise
                return None
            using.callback(self._release_soon)
            watchdog = using.enter_context(self._registered(Watchdog(limits.deadline_s, cursor.interrupt)))
            using.callback(cursor.close)
            return cursor, watchdog

    def _with_memory(self, memory_limit_mb: int) -> duckdb.DuckDBPyConnection:
        """The connection under that memory limit. Settings are locked, so another limit waits for the running queries
        and opens the file again."""
        if memory_limit_mb != self._memory_limit_mb:
            self._changed.wait_for(lambda: not self._watchdogs)
            self._let_go()
        if self._is_closed:
            raise OpenError(f"{self.name} is closed")
        if self._connection is None:
            self._connection = _connect(self.path, memory_limit_mb)
            self._memory_limit_mb = memory_limit_mb
            self._check_again(self._connection)
        return self._connection

    def _check_again(self, connection: duckdb.DuckDBPyConnection) -> None:
        """The writer of the file may have made macros meanwhile that read what is hidden. Raises OpenError."""
        if self._seen is not None:
            self._own, taken = own_names(connection)
            if taken:
                self._let_go()
                raise OpenError(_has_macros(self.path, taken))

    def _release_soon(self) -> None:
        """Other programs may write the file while nothing is asked: DuckDB locks it for as long as it is open."""
        with self._changed:
            if self._release is not None:
                self._release.cancel()
            self._release = threading.Timer(IDLE_S, _called, [weakref.WeakMethod(self._release_if_idle)])
            self._release.daemon = True
            self._release.start()

    def _release_if_idle(self) -> None:
        with self._changed:
            if not self._watchdogs:
                self._let_go()

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_schema(self) -> Schema:
        limits = Limits(deadline_s=SCHEMA_DEADLINE_S, memory_limit_mb=self._memory_limit_mb)
        try:
            with self._cursor(limits) as (cursor, _):
                order, notes = (self._copy.order, self._copy.notes) if self._copy else ((), {})
                return Schema(read_schema(cursor, order, notes), self.dialect)
        except duckdb.Error as error:
            raise OpenError(f"cannot read the tables of {self.path}: {_first_line(error)}") from error


def _called(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Call a method of an object that is still there."""
    if (call := method()) is not None:
        call()


def _connect(path: Path, memory_limit_mb: int) -> duckdb.DuckDBPyConnection:
    try:
        return duckdb.connect(str(path), read_only=True, config=locked_config(memory_limit_mb))
    except duckdb.ConnectionException as error:
        raise OpenError(f"{path} is open in this program with other settings; close it there first") from error
    except duckdb.Error as error:
        reason = _first_line(error)
        if re.search("could not set lock|conflicting lock", reason, re.IGNORECASE):
            told = f"{path} is open for writing in another program; close it there, or copy the file and open the copy"
            raise FileIsWritten(told) from error
        raise OpenError(_cannot_open(path, reason)) from error


def _has_macros(path: Path, taken: Collection[str]) -> str:
    shown = ", ".join(sorted(taken)[:5])
    return f"{path} has macros called like DuckDB's own functions ({shown}): drop them to hide something"


def _cannot_open(path: Path, reason: str) -> str:
    if re.search("corrupt|could not read enough bytes|not a valid duckdb", reason, re.IGNORECASE):
        return f"{path} is not a DuckDB database, or it is damaged: {reason}"
    return f"cannot open {path} with DuckDB {duckdb.__version__}: {reason}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _one_select(cursor: duckdb.DuckDBPyConnection, prefix: str, sql: str) -> QueryError | None:
    """Refuses what DuckDB's own parser does not read as one SELECT, or as EXPLAIN of one."""
    sql.encode()  # a text that is no Unicode is a ValueError here, and a TypeError of the binding later
    if "\0" in sql:  # DuckDB 1.5 reads up to it and no further
        return QueryError("refused", "refused: the statement holds characters that are not text")
    try:
        statements = cursor.extract_statements(prefix + sql)
    except ValueError:  # a statement newer than the client's list of kinds
        return QueryError("refused", "refused by DuckDB: only SELECT queries are run")
    wanted = duckdb.StatementType.EXPLAIN if prefix else duckdb.StatementType.SELECT
    if len(statements) != 1:
        return QueryError("refused", f"refused by DuckDB: one statement at a time, here are {len(statements)}")
    if statements[0].type != wanted:
        return QueryError("refused", "refused by DuckDB: only SELECT queries are run")
    return None


def _fetch(cursor: duckdb.DuckDBPyConnection, sql: str, limits: Limits, started: float) -> Result:
    cursor.execute(sql)
    description = cursor.description or []
    rows, truncated = fetch_rows(cursor.fetchmany, limits)
    columns, types = tuple(entry[0] for entry in description), tuple(str(entry[1]) for entry in description)
    return Result(columns, types, rows, truncated, (time.perf_counter() - started) * 1000)
