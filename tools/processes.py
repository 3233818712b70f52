"""Processes of this program's own: started, stopped at a deadline, with private temporary folders.

A process has a pipe to it; it is started, killed, and its cause of death is read. It is not multiprocessing's spawn, which
would run the main program's file again in the child, language model and all. A watchdog stops one running query at its
deadline, or when another thread says so; it knows no engine and calls what it is given.

Temporary folders are private to the user, never next to a source, and cleared after a killed process. Every folder holds a
locked file for as long as its process lives. A process that was killed (an evaluation kills workers that hang) leaves its
folders behind, unlocked; the next process removes them.
"""

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

PREFIX = "sqlagent-"
LOCK = "in-use"
ABANDONED_AFTER_S = 60.0
"""A folder may be this old before it has its lock: a process needs a moment between making one and locking it."""

_locks: dict[Path, int] = {}


def new_folder() -> Path:
    """A fresh empty folder that only this user can read. The caller removes it."""
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _locks[folder] = lock
    return folder


def remove_folder(folder: Path) -> None:
    """Remove `folder` and what is in it; one that is gone already is fine."""
    lock = _locks.pop(folder, None)
    if lock is not None:
        os.close(lock)
    shutil.rmtree(folder, ignore_errors=True)


@cache
def spill_folder() -> Path:
    """Where engines put what does not fit in memory, until the program ends.

    One per process: a DuckDB file that is open twice must be open with the same settings, and by default DuckDB would
    spill next to the user's file.
    """
    folder = new_folder()
    atexit.register(remove_folder, folder)
    return folder


@cache
def _remove_abandoned() -> None:
    """Once per process, remove this user's folders whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            status = folder.stat()
            old = time.time() - status.st_mtime > ABANDONED_AFTER_S
            if old and status.st_uid == os.getuid() and not _is_locked(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another process removed it first
            continue


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    lock = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


REPEAT_S = 0.02
Reason = Literal["timeout", "interrupted"]


class Watchdog:
    """Around one query: `with Watchdog(deadline_s, cursor.interrupt) as watchdog: ...`.

    An engine forgets an interrupt that reaches it between two calls, so `stop` is repeated every 20 ms until the block ends.
    DuckDB 1.5 has no timeout of its own and SQLite's progress handler needs the interpreter lock at every call; a thread
    serves all engines alike.
    """

    def __init__(self, deadline_s: float, stop: Callable[[], object]) -> None:
        self.reason: Reason | None = None
        self._deadline_s = deadline_s
        self._stop = stop
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="query-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._wake.set()
        self._thread.join()

    def interrupt(self) -> None:
        """Stop the query now; its error then says "interrupted" instead of "timeout"."""
        self.reason = self.reason or "interrupted"
        self._wake.set()

    def _watch(self) -> None:
        self._wake.wait(self._deadline_s)
        while not self._over.is_set():
            self.reason = self.reason or "timeout"
            self._stop()
            self._over.wait(REPEAT_S)


_CODE = (
    "import importlib, sys; sys.path.insert(0, sys.argv[1]);"
    "importlib.import_module(sys.argv[2]).serve(*map(int, sys.argv[3:]))"
)


class ChildProcess:
    """Runs `module`.serve(file descriptor of the pipe's other end, *numbers). stdout is closed to it; stderr is this process's.

    `environment` None: this process's own. Raises OSError when the system starts no process.
    """

    def __init__(self, module: str, *numbers: int, environment: Mapping[str, str] | None = None) -> None:
        own_end, child_end = Pipe()
        root = str(Path(__file__).resolve().parents[__name__.count(".")])  # of the outermost package
        command = [sys.executable, "-P", "-c", _CODE, root, module, str(child_end.fileno()), *map(str, numbers)]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
            )
        except OSError:
            own_end.close()
            raise
        finally:
            child_end.close()
        self.pipe: Connection = own_end

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def tell(self, message: object) -> None:
        """Send a message, unless the process is gone."""
        try:
            self.pipe.send(message)
        except OSError:
            return

    def kill(self) -> None:
        """End it now; what it was doing is lost."""
        self._process.kill()

    def close(self) -> None:
        """Kill it, and release what belongs to it."""
        self.kill()
        self._process.wait()
        self.pipe.close()

    def cause_of_death(self, patience_s: float = 2.0) -> str:
        """The signal or exit code of a process that is gone or about to go; after `patience_s` it is killed."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
