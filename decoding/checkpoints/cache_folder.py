"""The user's cache folder: where models are stored, how two processes share it, and progress of long work.

Files that take time to make are there whole or not at all, and are used only if their checksum is right. The checksum is part
of the file's name, KEY-CRC32.SUFFIX, so that one rename puts both in place. It protects against accidents (a power cut, a
failing disk), not against attackers: who can write here can write a checksum as well.

Long work on models (fetching, converting) reports its progress; it never writes to stdout.
"""

import errno
import hashlib
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from decoding.errors import ModelUnavailable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done, bytes in all (0: not known); the same `what` repeats until it is done."""


def silent(what: str, done: int, total: int) -> None:
    """Say nothing."""


class _StderrProgress:
    """One line per task on a terminal, redrawn per percent; elsewhere one line when a task starts."""

    def __init__(self) -> None:
        self._shown = ("", -1)

    def __call__(self, what: str, done: int, total: int) -> None:
        percent = 100 * done // total if total else 0
        previous = self._shown
        self._shown = (what, percent)
        if not sys.stderr.isatty():
            if what != previous[0]:
                print(f"{what}{_size(total)} ...", file=sys.stderr, flush=True)
        elif self._shown != previous:
            end = "\n" if total and done >= total else ""
            start = "\n" if previous[0] not in ("", what) and previous[1] < 100 else ""
            print(f"{start}\r\033[K{what}{_size(total)}: {percent} %", end=end, file=sys.stderr, flush=True)


def _size(total: int) -> str:
    return f" ({total / 1e6:.0f} MB)" if total else ""


on_stderr: Progress = _StderrProgress()


_CHUNK_BYTES = 1 << 20
_STORAGE_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EIO,
}  # fmt: skip


def cache_root() -> Path:
    """`$SQLAGENT_HOME`, else `$XDG_CACHE_HOME/sqlagent`, else the system's folder for caches; not created here.

    On Linux that folder is `~/.cache/sqlagent`.
    """
    if home := os.environ.get("SQLAGENT_HOME"):
        return Path(home).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("sqlagent", appauthor=False)


def made_cache_root() -> Path:
    """The cache folder, made private to this user where it is not there. Raises OSError.

    One that is there stays as it is where SQLAGENT_HOME names it, for several people may share it.
    """
    root = cache_root()
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    if not os.environ.get("SQLAGENT_HOME"):
        with suppress(OSError):
            root.chmod(0o700)
    return root


def private_file(path: Path) -> Path:
    """Make an empty file that only this user can read, or make one that is there so; returns its path. Raises OSError."""
    if path.parent == cache_root():
        made_cache_root()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)
    return path


def models_folder() -> Path:
    """Where converted models lie, one folder each."""
    return cache_root() / "models"


def downloads_folder() -> Path:
    """Where files are fetched to; empty when nothing is under way."""
    return cache_root() / "downloads"


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Let one process at a time work on `name`; others wait. Raises ModelUnavailable where the cache is not writable."""
    locks = cache_root() / "locks"
    try:
        made_cache_root()
        locks.mkdir(exist_ok=True)
        lock = FileLock(locks / f"{name}.lock")
        lock.acquire()
    except OSError as error:
        raise ModelUnavailable(
            f"cannot write to {cache_root()} ({error.strerror or error}); set SQLAGENT_HOME to a folder you can write to"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A fresh folder that becomes `target` when the block ends without an error, and vanishes otherwise.

    Not safe against a second writer of the same target: hold `exclusive`.
    """
    staging = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        shutil.rmtree(target, ignore_errors=True)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def is_storage_trouble(error: BaseException) -> bool:
    """Whether a file could not be written, and no network has to do with it."""
    return isinstance(error, OSError) and error.errno in _STORAGE_ERRORS


def sha256_of(path: Path, progress: Progress = silent, what: str = "checking") -> str:
    """SHA-256 of a file as hexadecimal digits."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(what, done, total)
    return digest.hexdigest()


def written_whole(target: Path, data: bytes) -> None:
    """Write a file that nobody sees unfinished, be it after a power cut, and that only this user can read. Raises OSError."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=target.parent, prefix=".unfinished-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def crc32_of(path: Path) -> int:
    """The checksum of a file."""
    crc32 = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32


def flush(path: Path) -> None:
    """Have the disk hold what was written to a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
