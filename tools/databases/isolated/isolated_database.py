"""A database whose queries run in processes of their own, which can be killed: a query that hangs, eats memory or crashes its
engine costs that query alone. The schema is read in this process; files that are copied are read in another (`copy_apart`).

Each process is started when it is first needed, and kept. What it answers is read as plain data
(`tools/databases/isolated/messages.py`). There the engines' own classes run unchanged, so that the results are theirs.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tools.databases.isolated.query_process import Opening, Request, Verb
from tools.databases.isolated.query_worker import QueryWorker
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
from tools.schema import Schema

if TYPE_CHECKING:
    from tools.databases.guarded_database import GuardedDatabase

MOST_PROCESSES = 4
"""Queries of one database that run at a time; more wait."""


class IsolatedDatabase:
    """`database` with its queries elsewhere; see `tools.databases.database.Database`."""

    def __init__(self, database: "GuardedDatabase") -> None:
        self.name, self.dialect = database.name, database.dialect
        self._database = database
        self._changed = threading.Condition()
        self._idle: list[QueryWorker] = []
        self._busy: list[QueryWorker] = []
        self._closed = False
        self._seen: Schema | None = None

    def hold_to(self, seen: Schema) -> None:
        """In the processes that are started from now on, too; see `Database.hold_to`."""
        self._database.hold_to(seen)
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            self._seen = seen
            for worker in self._idle:
                worker.close()

    def schema(self) -> Schema:
        """See `Database.schema`."""
        return self._database.schema()

    def prepare(self) -> None:
        """Let a process for queries start while this one does something else."""
        with self._changed:
            if not self._closed and not self._idle and not self._busy:
                worker = QueryWorker(self._opening)
                worker.begin()
                self._busy.append(worker)
                threading.Thread(target=self._start, args=(worker,), daemon=True).start()

    def execute(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Run one guarded query; see `Database.execute`."""
        outcome = self._ask("execute", sql, limits)
        return outcome or QueryError("other", "the process for queries gave no answer")

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """Guard and bind without running; see `Database.explain`."""
        outcome = self._ask("explain", sql, limits)
        return outcome if isinstance(outcome, QueryError) else None

    def interrupt(self) -> None:
        """Stop every query that runs now."""
        with self._changed:
            for worker in self._busy:
                worker.interrupt()

    def close(self) -> None:
        """Stop what runs, end the processes, and close the database."""
        self._closed = True
        self.interrupt()
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            for worker in self._idle:
                worker.close()
            self._idle.clear()
        self._database.close()

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that there are now."""
        with self._changed:
            return [worker.pid for worker in (*self._busy, *self._idle) if worker.pid is not None]

    def _ask(self, verb: Verb, sql: str, limits: Limits) -> Result | QueryError | None:
        try:
            with self._worker() as worker:
                return worker.ask(Request(verb, sql, limits))
        except OpenError as error:
            return QueryError("connection", str(error))

    @contextmanager
    def _worker(self) -> Iterator[QueryWorker]:
        """The process that was used last, a new one, or, where there are enough, the next that is free."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._idle or len(self._busy) < MOST_PROCESSES)
            if self._closed:
                raise OpenError(f"{self.name} is closed")
            worker = self._idle.pop() if self._idle else QueryWorker(self._opening)
            worker.begin()
            self._busy.append(worker)
        try:
            yield worker
        finally:
            self._free(worker)

    def _start(self, worker: QueryWorker) -> None:
        """The worker's process; where none starts, the first query says so."""
        try:
            with suppress(OpenError):
                worker.start()
        finally:
            self._free(worker)

    def _free(self, worker: QueryWorker) -> None:
        with self._changed:
            self._busy.remove(worker)
            self._idle.append(worker)
            self._changed.notify_all()

    def _opening(self) -> Opening:
        kind, schema = type(self._database), self._database.schema()
        place = f"{kind.__module__}:{kind.__qualname__}"
        return Opening(place, self._database.location, self.name, schema, kind.needs_environment, self._seen)
