"""What the engines' databases do alike: the schema is read once, the guard sees a statement before the engine does, and a query
that runs can be stopped. What an engine does with a statement that passed is its own part.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Self

from tools.databases.choices import SchemaCache
from tools.databases.database import Distinct
from tools.databases.settled_ties import SETTLED, Settled, settle_ties
from tools.guard.guard import ApprovedQuery, judged
from tools.processes import Reason, Watchdog
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
from tools.schema import Schema

_SORTS = re.compile(r"\bORDER\s+BY\b", re.IGNORECASE)
_STOPPED = ("timeout", "memory", "interrupted", "connection")


class GuardedDatabase(ABC):
    """The base of `tools.databases.database.Database`s that run statements themselves.

    `explain_prefix`: what makes a statement one that is bound and not run; None where the engine has nothing of the kind.
    """

    dialect: str
    has_schemas = False  # whether tables may lie outside a default schema
    needs_environment: ClassVar[bool] = False  # whether a process of its own gets this program's environment variables

    def __init__(self, name: str, explain_prefix: str | None) -> None:
        self.name = name
        self._explain_prefix = explain_prefix
        self._changed = threading.Condition()  # guards `_watchdogs`, one for each query that runs
        self._watchdogs: set[Watchdog] = set()
        self._schema: Schema | None = None
        self._schema_lock = threading.Lock()
        self._cache: SchemaCache | None = None

    def schema(self) -> Schema:
        """The schema, read on the first call. Raises OpenError when it cannot be read."""
        with self._schema_lock:
            if self._schema is None:
                self._schema = self._kept_schema()
            return self._schema

    def keep_schema(self, cache: SchemaCache) -> None:
        """From now on take the schema from there, or put it there; to be called before it is read."""
        self._cache = cache

    def know(self, schema: Schema) -> None:
        """Take over a schema that was read before."""
        self._schema = schema

    def hold_to(self, seen: Schema) -> None:  # noqa: B027
        """A kind without such a lock does nothing; see `Database.hold_to`."""

    def execute(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Run one guarded query with the order of equal rows settled, or as it is where the engine does not take it so."""
        settled = self._settled(sql) if self.dialect in SETTLED and _SORTS.search(sql) else None
        if settled is None:
            return self._run_judged(sql, limits, "")
        outcome = self._run_judged(settled.text, limits, "")
        if isinstance(outcome, Result):
            return replace(outcome, tie_keys=settled.keys)
        return outcome if outcome.kind in _STOPPED else self._run_judged(sql, limits, "")

    def _settled(self, sql: str) -> Settled | None:
        statement = self._judged(sql)
        return settle_ties(statement, self.schema()) if isinstance(statement, ApprovedQuery) else None

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """Bind without running, where the engine can; elsewhere only guard. See `Database.explain`."""
        if self._explain_prefix is None:
            verdict = self._judged(sql)
            return verdict if isinstance(verdict, QueryError) else None
        outcome = self.plan(sql, limits)
        return outcome if isinstance(outcome, QueryError) else None

    def plan(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """The engine's plan of a guarded statement; see `Database.plan`."""
        if self._explain_prefix is None:
            return QueryError("other", f"no plan is told for {self.dialect}")
        return self._run_judged(sql, limits, self._explain_prefix)

    def distinct(self, wanted: Distinct, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Look up values past the engine's own locks alone, by a statement that is made here; see `Database.distinct`."""
        try:
            return self._look_up(wanted.sql(self.schema()), limits)
        except LookupError as error:
            return QueryError("refused", str(error))
        except OpenError as error:
            return QueryError("connection", str(error))

    def prepare(self) -> None:
        """Read the schema, if that has not been done."""
        self.schema()

    def interrupt(self) -> None:
        """Stop every query that runs now."""
        with self._changed:
            for watchdog in self._watchdogs:
                watchdog.interrupt()

    @property
    @abstractmethod
    def location(self) -> str:
        """What `reopened` takes."""

    @classmethod
    @abstractmethod
    def reopened(cls, location: str, name: str) -> Self:
        """The same database in another process, which imports this class by its module and name. Raises OpenError."""

    @abstractmethod
    def close(self) -> None:
        """Stop what runs and let go of what the database holds."""

    @abstractmethod
    def _read_schema(self) -> Schema:
        """Raises OpenError."""

    @abstractmethod
    def _run(self, sql: str, limits: Limits, prefix: str = "") -> Result | QueryError:
        """Run `prefix + sql` past the engine's own locks alone."""

    def _kept_schema(self) -> Schema:
        """The schema from the cache; what was not there is there then. Raises OpenError."""
        reader = type(self).__qualname__
        schema = self._cache.read(reader) if self._cache else None
        if schema is None:
            schema = self._read_schema()
            if self._cache:
                self._cache.write(reader, schema)
        return schema

    def _look_up(self, sql: str, limits: Limits) -> Result | QueryError:
        """Run a statement that this program made."""
        return self._run(sql, limits)

    def _run_judged(self, sql: str, limits: Limits, prefix: str) -> Result | QueryError:
        """Run what was judged of `sql`; places in errors are those of `sql`."""
        statement = self._judged(sql)
        if isinstance(statement, QueryError):
            return statement
        outcome = self._run(statement.text, limits, prefix)
        if not isinstance(outcome, QueryError):
            return outcome
        return replace(outcome, position=statement.spelling.origin(outcome.position))

    def _judged(self, sql: str) -> ApprovedQuery | QueryError:
        try:
            return judged(sql, self.dialect, self.schema())
        except OpenError as error:
            return QueryError("connection", str(error))

    @contextmanager
    def _registered(self, watchdog: Watchdog) -> Iterator[Watchdog]:
        """A query's watchdog, which `interrupt` reaches until the block ends."""
        with self._changed:
            self._watchdogs.add(watchdog)
        try:
            yield watchdog
        finally:
            with self._changed:
                self._watchdogs.discard(watchdog)
                self._changed.notify_all()


def stop_error(reason: Reason | None, error: Exception, limits: Limits) -> QueryError | None:
    """What to say of a query that did not come to its own end: `reason` is why it was stopped. None for any other error."""
    if reason == "timeout":
        return QueryError("timeout", f"stopped after {limits.deadline_s:g} s")
    if reason == "interrupted":
        return QueryError("interrupted", "stopped on request")
    if isinstance(error, MemoryError):
        return QueryError("memory", str(error) or "out of memory")
    return None
