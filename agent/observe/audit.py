"""The audit log: who asked what, which SQL ran, and its outcome. It is one SQLite file, written as things happen, so that
nothing is lost if the program is killed.

A question is an entry without SQL. Every statement is a further entry, written as "running" before it runs and completed
afterwards; an entry that stays "running" belongs to a program that was killed. Only this user can read the log, and the
rows of results are never written to it.
"""

import sqlite3
import sys
import threading
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from time import time

from agent.observe.failures import FAILURE, with_traceback
from agent.observe.telemetry import statement
from decoding.checkpoints.cache_folder import private_file
from tools.databases.database import Database
from tools.result import Limits, QueryError, Result

ASKED, RUNNING, OK = "asked", "running", "ok"
LONGEST_TEXT = 64 << 10
"""Characters that a question, statement or message has in the log at most: it should not fill the disk."""
_TABLE = """
CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, at_s REAL NOT NULL, who TEXT NOT NULL, way TEXT NOT NULL,
    source TEXT NOT NULL, question TEXT NOT NULL, sql TEXT, outcome TEXT NOT NULL, message TEXT NOT NULL, row_count INTEGER,
    wall_ms REAL);
CREATE INDEX IF NOT EXISTS by_time ON entries (at_s);
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log. `way`: ask, chat, sql, ui, ...; `source`: the database's name; `at_s`: seconds since 1970.

    `outcome`: asked, running, ok, the kind of a `tools.result.QueryError`, or failure, whose message is a line and the
    traceback of what failed unexpectedly. `sql` is None for a question itself and for a failure.
    """

    id: int
    at_s: float
    who: str
    way: str
    source: str
    question: str
    sql: str | None
    outcome: str
    message: str
    row_count: int | None
    wall_ms: float | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of entries: by asker, by outcome, by time (seconds since 1970), by a text in question, SQL or message."""

    who: str = ""
    outcome: str = ""
    text: str = ""
    since_s: float = 0.0


class AuditLog:
    """Owns the file. Thread-safe, and safe while other programs write to the same file."""

    def __init__(self, path: Path) -> None:
        """Open or create the log. Raises sqlite3.Error, OSError."""
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            private_file(path), check_same_thread=False, isolation_level=None, timeout=10
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_TABLE)
        self._has_warned = False

    def write(self, entry: Entry) -> int:
        """Append an entry, ignoring its id; returns its new id, 0 if the log cannot be written."""
        marks = ", ".join("?" for _ in fields(Entry))
        return self._do(f"INSERT INTO entries VALUES ({marks})", (None, *map(_writable, astuple(entry)[1:])))

    def complete(self, entry: Entry) -> None:
        """Store the outcome of a statement that was written as running."""
        change = "UPDATE entries SET outcome = ?, message = ?, row_count = ?, wall_ms = ? WHERE id = ?"
        self._do(change, (entry.outcome, _writable(entry.message), entry.row_count, entry.wall_ms, entry.id))

    def entries(self, wanted: Wanted, after: int = 0, most: int = -1) -> Iterator[Entry]:
        """The newest `most` entries with ids above `after`, oldest first. A negative `most` means all."""
        query = """SELECT * FROM (SELECT * FROM entries WHERE id > ? AND at_s >= ? AND (? = '' OR who = ?)
            AND (? = '' OR outcome = ?) AND (? = '' OR instr(lower(question || ' ' || coalesce(sql, '') || ' ' || message),
            lower(?)) > 0) ORDER BY id DESC LIMIT ?) ORDER BY id"""
        pairs = [each for value in (wanted.who, wanted.outcome, wanted.text) for each in (value, value)]
        with self._lock:
            rows = self._connection.execute(query, (after, wanted.since_s, *pairs, most)).fetchall()
        yield from (Entry(*row) for row in rows)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _do(self, statement: str, values: tuple[object, ...]) -> int:
        """Execute a statement; returns the id of the last row. Warns once if the log cannot be written, but does not raise,
        so that answering goes on.
        """
        try:
            with self._lock:
                return self._connection.execute(statement, values).lastrowid or 0
        except Exception as error:
            if not self._has_warned:
                print(f"sqlagent: the log cannot be written ({error}); answering goes on without it", file=sys.stderr)
            self._has_warned = True
            return 0


@dataclass(slots=True)
class Trail:
    """Writes to the log what one asker does."""

    log: AuditLog
    who: str
    way: str
    question: str = ""

    def asked(self, question: str, source: str) -> None:
        """Write a question; the statements that follow belong to it."""
        self.question = question
        self.log.write(self._entry(source, None, ASKED))

    def run(self, database: Database, sql: str, limits: Limits) -> Result | QueryError:
        """Execute, writing an entry before and completing it afterwards."""
        entry = self._entry(database.name, sql, RUNNING)
        entry = replace(entry, id=self.log.write(entry))
        outcome = database.execute(sql, limits)
        if isinstance(outcome, QueryError):
            entry = replace(entry, outcome=outcome.kind, message=outcome.message)
        else:
            settled = f"ties settled by {', '.join(outcome.tie_keys)}" if outcome.tie_keys else ""
            entry = replace(entry, outcome=OK, message=settled, row_count=len(outcome.rows), wall_ms=outcome.wall_ms)
        self.log.complete(entry)
        return outcome

    def turned_down(self, database: Database, sql: str, error: QueryError) -> None:
        """Write a statement that was not run."""
        self.log.write(replace(self._entry(database.name, sql, error.kind), message=error.message))

    def failed(self, source: str, error: BaseException) -> None:
        """Write what failed unexpectedly, with its traceback."""
        self.log.write(replace(self._entry(source, None, FAILURE), message=with_traceback(error)))

    def _entry(self, source: str, sql: str | None, outcome: str) -> Entry:
        return Entry(0, time(), self.who, self.way, source, self.question, sql, outcome, "", None, None)


def run_sql(trail: Trail | None, database: Database, sql: str, limits: Limits) -> Result | QueryError:
    """Execute; write to the audit log if `trail` is given, and trace the statement if traces are switched on."""
    with statement(database, sql) as tell:
        outcome = trail.run(database, sql, limits) if trail else database.execute(sql, limits)
        tell(outcome)
        return outcome


def _writable(value: object) -> object:
    """The value as it is stored: a long text is cut and says how long it was, and lone surrogates, which SQLite cannot store,
    are replaced.
    """
    if not isinstance(value, str):
        return value
    kept = value[:LONGEST_TEXT].encode(errors="replace").decode()
    return kept if len(value) <= LONGEST_TEXT else f"{kept} … ({len(value):,} characters)"
