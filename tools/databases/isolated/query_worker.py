"""The owner of one process for queries: starts it when needed, holds it to its time, replaces it when lost."""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from tools.databases.isolated.messages import unpacked
from tools.databases.isolated.query_process import STOP, Opening, Request
from tools.processes.child_process import ChildProcess
from tools.processes.temporary_folders import new_folder, remove_folder
from tools.processes.watchdog import Watchdog
from tools.result import Limits, QueryError, Result

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
                self._process = ChildProcess(
                    "tools.databases.isolated.query_process", environment=self._environment(opening)
                )
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
