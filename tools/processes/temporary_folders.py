"""The program's own temporary folders: private to the user, never beside a source, and cleared after a killed process.

Every folder holds a locked file for as long as its process lives. A process that was killed (an evaluation kills workers that
hang) leaves its folders behind, unlocked; the next process removes them.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path

PREFIX = "sqlagent-"
LOCK = "in-use"
ABANDONED_AFTER_S = 60.0
"""A folder may be this old before it has its lock: a process needs a moment between making one and locking it."""

_locks: dict[Path, int] = {}


def new_folder() -> Path:
    """A fresh empty folder that only this user can read. Whoever takes it removes it."""
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
    spill beside the user's file.
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
