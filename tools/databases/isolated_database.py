"""A database whose queries run in processes of their own, which can be killed.

A query that hangs, exhausts memory or crashes its engine fails alone. Each process is started when it is first needed, kept,
held to its deadline, and replaced when it is lost. What it answers is read as plain data (`tools/databases/query_process.py`).
The engines' own classes run there unchanged, so the results are theirs.

Files are copied into a database in a process of their own, too: a file that crashes its reader, or makes it take all memory or
hours, is reported in one line. The schema of other sources is read in this process.
"""

import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import BoundedSemaphore
from time import monotonic
from typing import TYPE_CHECKING, Any

import ormsgpack
from pydantic import ValidationError

from tools.databases.database import Distinct
from tools.databases.files.file_kinds import FileKind
from tools.databases.files.load_files import COPIED, Copied, Loading
from tools.databases.files.sheets import DETECTED, Choices
from tools.databases.query_process import STOP, Opening, Request, unpacked
from tools.processes import ChildProcess, Watchdog, new_folder, remove_folder
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
from tools.schema import Schema

if TYPE_CHECKING:
    from tools.databases.choices import SchemaCache
    from tools.databases.guarded_database import GuardedDatabase


START_S = 120.0
GRACE_S = 0.5
"""What an engine gets to stop by itself: past its deadline, and again once it was told."""
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TZDIR", "LD_LIBRARY_PATH", "PYTHONPATH")
_INTERRUPTED = QueryError("interrupted", "stopped on request")


class QueryWorker:
    """One process, one query at a time."""

    def __init__(self, opening: Callable[[], Opening]) -> None:
        self._opening = opening
        self._is_stopped = False
        self._process: ChildProcess | None = None
        self._folder = new_folder()
        self._remove_folder = weakref.finalize(self, remove_folder, self._folder)
        self._watchdog: Watchdog | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, None while there is none."""
        return self._process.pid if self._process else None

    def begin(self) -> None:
        """From here on `interrupt` stops what `ask` will do."""
        self._is_stopped = False

    def ask(self, request: Request) -> Result | QueryError | None:
        """The outcome. A process that was lost while it had nothing to do is replaced without a word. Raises OpenError."""
        is_new, is_taken = self._process is None or not self._process.is_alive, False
        process = self._started() if is_new else self._process
        if not isinstance(process, ChildProcess):
            return process
        with self._watched(Watchdog(request.limits.deadline_s + GRACE_S, _Ending(process))) as watchdog:
            try:
                process.pipe.send(request)
                is_taken = unpacked(process.pipe.recv_bytes()) is None
                outcome = unpacked(process.pipe.recv_bytes(request.limits.memory_limit_mb << 20))
                return _told(watchdog, outcome, request.limits)
            except (EOFError, OSError, ValueError):
                cause = process.cause_of_death()
        self.close()
        if not is_taken and not is_new and watchdog.reason is None:
            return self.ask(request)
        return _loss(watchdog, cause, request.limits)

    def start(self) -> None:
        """Start the process where there is none. Raises OpenError."""
        if self._process is None:
            self._started()

    def interrupt(self) -> None:
        """Stop what runs, or is about to."""
        self._is_stopped = True
        watchdog = self._watchdog
        if watchdog is not None:
            watchdog.interrupt()

    def close(self) -> None:
        """End the process; the next query would start another."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _started(self) -> ChildProcess | QueryError:
        """A new process, which has said that it is there."""
        self.close()
        opening, watchdog = self._opening(), Watchdog(START_S, self._kill)
        try:
            with self._watched(watchdog):
                self._process = ChildProcess("tools.databases.query_process", environment=self._environment(opening))
                self._process.pipe.send(opening)
                unpacked(self._process.pipe.recv_bytes())
                return self._process
        except (EOFError, OSError, ValueError) as error:
            self.close()
            if watchdog.reason == "interrupted":
                return _INTERRUPTED
            return QueryError("connection", f"no process for queries starts: {str(error) or 'it ended at once'}")

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    @contextmanager
    def _watched(self, watchdog: Watchdog) -> Iterator[Watchdog]:
        self._watchdog = watchdog
        if self._is_stopped:
            watchdog.interrupt()
        try:
            with watchdog:
                yield watchdog
        finally:
            self._watchdog = None

    def _environment(self, opening: Opening) -> Mapping[str, str]:
        """A file's reader gets none of this program's passwords and keys; a server's driver may need them."""
        own = {name: value for name, value in os.environ.items() if opening.needs_environment or name in KEPT}
        return own | {"TMPDIR": str(self._folder), "SQLITE_TMPDIR": str(self._folder)}


class _Ending:
    """Ends a query when called again and again: tells its process to stop, and kills it when it does not."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process
        self._told_s: float | None = None

    def __call__(self) -> None:
        if self._told_s is None:
            self._told_s = monotonic()
            self._process.tell(STOP)
        elif monotonic() - self._told_s > GRACE_S:
            self._process.kill()


def _told(watchdog: Watchdog, outcome: Result | QueryError | None, limits: Limits) -> Result | QueryError | None:
    """The outcome. A process that was late, and was told to stop at the deadline, knows of a request only."""
    if watchdog.reason == "timeout" and isinstance(outcome, QueryError) and outcome.kind == "interrupted":
        return QueryError("timeout", f"stopped after {limits.deadline_s:g} s")
    return outcome


def _loss(watchdog: Watchdog, cause: str, limits: Limits) -> QueryError:
    """What to say of a query whose process is gone."""
    if watchdog.reason == "interrupted":
        return _INTERRUPTED
    if watchdog.reason == "timeout":
        return QueryError("timeout", f"stopped after {limits.deadline_s:g} s")
    if cause == "SIGXCPU":
        return QueryError("timeout", "stopped: it took all the processor time that it may have")
    if cause == "SIGKILL":
        return QueryError("memory", "the system stopped the query's process, most likely for want of memory")
    return QueryError("other", f"the query crashed its process ({cause}); the next query gets a new one")


AT_ONCE = 2
"""Files that load at a time in one program; others wait."""
LEAST_S, S_PER_MB = 120.0, 2.0
LEAST_MEMORY_MB, MEMORY_PER_MB, MOST_MEMORY_MB = 1024, 4, 4096
LEAST_DISK_MB, DISK_PER_MB = 2048, 20
"""What loading may take, by the size of the files: a small file that takes much is no honest one."""
LONGEST_ANSWER = 64 << 20  # bytes

_turns = BoundedSemaphore(AT_ONCE)


def copy_apart(
    files: Sequence[tuple[Path, FileKind]], copy: Path, optional: Collection[Path] = (), choices: Choices = DETECTED
) -> Copied:
    """As `tools.databases.files.load_files.copy_files`. Raises OpenError."""
    loading = replace(_loading(files, copy, optional), choices=dict(choices))
    what = str(files[0][0]) if len(files) == 1 else f"these {len(files)} files"
    with _turns:
        answer = _answer(loading, what)
    if answer.get("error"):
        raise OpenError(str(answer["error"]))
    try:
        return COPIED.validate_python(answer)
    except ValidationError as error:
        raise OpenError(_too_much(loading, what)) from error


def _loading(files: Sequence[tuple[Path, FileKind]], copy: Path, optional: Collection[Path]) -> Loading:
    size_mb = sum(file.stat().st_size for file, _ in files) >> 20
    return Loading(
        tuple(files),
        copy,
        tuple(optional),
        deadline_s=LEAST_S + S_PER_MB * size_mb,
        memory_mb=min(LEAST_MEMORY_MB + MEMORY_PER_MB * size_mb, MOST_MEMORY_MB),
        disk_mb=LEAST_DISK_MB + DISK_PER_MB * size_mb,
    )


def _answer(loading: Loading, what: str) -> dict[str, Any]:
    """What the process says, as plain data. Raises OpenError where it is lost."""
    environment = {name: value for name, value in os.environ.items() if name in KEPT}
    try:
        process = ChildProcess(
            "tools.databases.files.load_files", environment=environment | {"TMPDIR": str(loading.copy.parent)}
        )
    except OSError as error:
        raise OpenError(f"no process for loading starts: {error}") from error
    try:
        with Watchdog(loading.deadline_s, process.kill) as watchdog:
            process.pipe.send(loading)
            answer = ormsgpack.unpackb(process.pipe.recv_bytes(LONGEST_ANSWER))
            return answer if isinstance(answer, dict) else {}
    except (EOFError, OSError, ValueError) as error:
        if watchdog.reason == "timeout":
            raise OpenError(f"{what} takes longer than {loading.deadline_s:g} s to load; load a part of it") from error
        raise OpenError(_too_much(loading, what)) from error
    finally:
        process.close()


def _too_much(loading: Loading, what: str) -> str:
    told = f"{what} is damaged, or takes more than {loading.memory_mb} MiB of memory to load"
    return f"{told}; load a part of it, or save it as CSV"


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

    def keep_schema(self, cache: "SchemaCache") -> None:
        """See `GuardedDatabase.keep_schema`."""
        self._database.keep_schema(cache)

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
        outcome = self._ask(Request("execute", sql, limits))
        return outcome or QueryError("other", "the process for queries gave no answer")

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """Guard and bind without running; see `Database.explain`."""
        outcome = self._ask(Request("explain", sql, limits))
        return outcome if isinstance(outcome, QueryError) else None

    def plan(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """The engine's plan; see `Database.plan`."""
        outcome = self._ask(Request("plan", sql, limits))
        return outcome or QueryError("other", "the process for queries gave no answer")

    def distinct(self, wanted: Distinct, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Look up values; see `Database.distinct`."""
        outcome = self._ask(Request("distinct", wanted, limits))
        return outcome or QueryError("other", "the process for queries gave no answer")

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

    def _ask(self, request: Request) -> Result | QueryError | None:
        try:
            with self._worker() as worker:
                return worker.ask(request)
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
