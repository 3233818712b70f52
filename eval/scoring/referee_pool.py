"""Owns the scoring processes: starts them, enforces their deadlines, and replaces those that are lost.

Neither a signal handler nor a thread can stop a stuck C call, so a process is killed when its phase overruns.
"""

from eval.scoring.referee import Phase, Task, Verdict, lost
from tools.processes import ChildProcess

_START_S = 120.0
_MESSAGE_GRACE_S = 0.5


class WorkerError(Exception):
    """The scoring process does not start; the message is one line."""


class _LostError(Exception):
    """The process is gone or was killed; the message says how."""


class Worker:
    """One scoring process, started on first use. `memory_mb` bounds its address space (Linux).

    SQLite needs little; DuckDB reserves address space beyond its own limit, so give it 8,192 or more.
    """

    def __init__(self, memory_mb: int = 2048) -> None:
        self._memory_mb = memory_mb
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is no process."""
        return self._process.pid if self._process else None

    def judge(self, task: Task) -> Verdict:
        """The verdict on one question, also if a query hangs, uses too much memory or crashes the process.

        Raises `WorkerError` if no process can be started.
        """
        message = self._handed(task)
        while isinstance(message, Phase):
            phase = message
            try:
                message = self._received(phase.allowance_s)
            except _LostError as error:
                self.close()
                return lost(phase, str(error))
        if message.exhausted:
            self.close()
        return message

    def close(self) -> None:
        """Kill the process, if there is one. The next task starts another."""
        if self._process:
            self._process.close()
        self._process = None

    def _handed(self, task: Task) -> Phase | Verdict:
        """The first message about the task. A process that dies before sending one is taken to have died idle, and replaced."""
        try:
            return self._first_word(task)
        except _LostError:
            self.close()
        try:
            return self._first_word(task)
        except _LostError as error:
            self.close()
            raise WorkerError(f"the scoring process takes no task: {error}") from error

    def _first_word(self, task: Task) -> Phase | Verdict:
        self._start()
        process = self._running()
        try:
            process.pipe.send(task)
        except OSError as error:
            raise _crashed(process) from error
        return self._received(_START_S)

    def _start(self) -> None:
        """Start a process if there is none, and wait until it is ready."""
        if self._process:
            return
        self._process = ChildProcess("eval.scoring.referee", self._memory_mb)
        try:
            self._received(_START_S)
        except _LostError as error:
            self.close()
            raise WorkerError(f"the scoring process does not start: {error}; its own message is above") from error

    def _running(self) -> ChildProcess:
        if self._process is None:
            raise WorkerError("the scoring process was closed")
        return self._process

    def _received(self, allowance_s: float) -> Phase | Verdict:
        """The next message. Raises `_LostError` if it does not arrive in time or the process dies first."""
        process = self._running()
        try:
            if not process.pipe.poll(allowance_s + _MESSAGE_GRACE_S):
                raise _LostError(f"timeout after {allowance_s:.3g} s")
            message: Phase | Verdict = process.pipe.recv()
        except (EOFError, OSError) as error:
            raise _crashed(process) from error
        return message


def _crashed(process: ChildProcess) -> _LostError:
    return _LostError(f"the scoring process crashed ({process.cause_of_death()})")
