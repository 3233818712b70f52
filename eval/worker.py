"""The owner of scoring processes: it starts them, holds them to their deadlines, and replaces those that are lost.

A stuck C call cannot be stopped by a signal handler or a thread, so each process is killed when its phase overruns.
"""

import queue
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Self

from eval.referee import Phase, Task, Verdict, lost

_START_S = 120.0
_MESSAGE_GRACE_S = 0.5
# Not multiprocessing's spawn: that would run the main program's file again in the child, language model and all.
_CHILD = "import sys; sys.path.insert(0, sys.argv[3]); import eval.referee as r; r.serve(*map(int, sys.argv[1:3]))"


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
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process's id, None while there is none."""
        return self._process.pid if self._process else None

    def judge(self, task: Task) -> Verdict:
        """The verdict on one question; a query that hangs, eats memory or crashes the process is one, too.

        Raises `WorkerError` when no process can be started.
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
            self._process.kill()
            self._process.wait()
        if self._pipe:
            self._pipe.close()
        self._process = self._pipe = None

    def _handed(self, task: Task) -> Phase | Verdict:
        """The first word on the task. A process that dies before it says any had died while idle, and is replaced."""
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
        try:
            self._open_pipe().send(task)
        except OSError as error:
            raise _LostError(self._cause_of_death()) from error
        return self._received(_START_S)

    def _start(self) -> None:
        """Have a process, and wait until it is ready."""
        if self._process:
            return
        self._pipe, child_end = Pipe()
        root = str(Path(__file__).resolve().parents[1])
        command = [sys.executable, "-c", _CHILD, str(child_end.fileno()), str(self._memory_mb), root]
        self._process = subprocess.Popen(
            command, pass_fds=[child_end.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        child_end.close()
        try:
            self._received(_START_S)
        except _LostError as error:
            self.close()
            raise WorkerError(f"the scoring process does not start: {error}; its own message is above") from error

    def _open_pipe(self) -> Connection:
        if self._pipe is None:
            raise WorkerError("the scoring process was closed")
        return self._pipe

    def _received(self, allowance_s: float) -> Phase | Verdict:
        """The next message. Raises `_LostError` when it does not come in time or the process dies first."""
        pipe = self._open_pipe()
        try:
            if not pipe.poll(allowance_s + _MESSAGE_GRACE_S):
                raise _LostError(f"timeout after {allowance_s:.3g} s")
            message: Phase | Verdict = pipe.recv()
        except (EOFError, OSError) as error:
            raise _LostError(self._cause_of_death()) from error
        return message

    def _cause_of_death(self) -> str:
        code = self._process.wait(timeout=_START_S) if self._process else 0
        return f"the scoring process crashed ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


class WorkerPool:
    """Several scoring processes side by side, for many questions at once."""

    def __init__(self, size: int, memory_mb: int = 2048) -> None:
        self._workers = [Worker(memory_mb) for _ in range(size)]

    def judge_all(self, tasks: Sequence[Task]) -> Iterator[Verdict]:
        """The verdicts, in the order of `tasks`, each as soon as it and all before it are there."""
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            idle.put(worker)

        def judge(task: Task) -> Verdict:
            worker = idle.get()
            try:
                return worker.judge(task)
            finally:
                idle.put(worker)

        with ThreadPoolExecutor(len(self._workers)) as threads:
            yield from threads.map(judge, tasks)

    def close(self) -> None:
        """Kill every process."""
        for worker in self._workers:
            worker.close()
