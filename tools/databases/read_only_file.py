"""A SQLite file that other programs may be writing, read as it is now and without a trace beside it.

SQLite's own locks hold where they can: a file in another mode than WAL is opened with `mode=ro`, one in WAL mode that a
program has open with `readonly_shm` as well, so that not even the index of its log is touched. A file in WAL mode that nobody
has open cannot be opened so without making `-wal` and `-shm` files beside it. It is read as immutable, and read again where it
turns out to have changed meanwhile. Writes that a killed program left unfinished, which SQLite could only finish or undo by
writing, are finished in a private copy, which is made anew when the file changes.
"""

import shutil
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from tools.databases.sqlite_schema import DEADLINE_S, error_code, is_interrupt, read_schema
from tools.processes import new_folder, remove_folder
from tools.result import OpenError
from tools.schema import Schema

T = TypeVar("T")

MAGIC = b"SQLite format 3\0"
_WAL_VERSION = 2
_TRIES = 5
_MINE = "mode=ro"
_SHARED = "mode=ro&readonly_shm=1"
_ALONE = "mode=ro&immutable=1"
_Stamp = tuple[tuple[int, int, int], ...]


class _Way(NamedTuple):
    """How the file is opened now. `stamp`: what must not change while it is read; None where SQLite's locks see to that."""

    path: Path
    options: str
    stamp: _Stamp | None = None


class ReadOnlyFile:
    """A SQLite file and the ways to read it that leave its folder alone. Raises OpenError when it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # guards the private copy
        self._copied: _Stamp | None = None
        self._folder: Path | None = None
        self._remove_copy: Callable[[], object] = _nothing
        try:
            entries = self.stable(_entries)
        except sqlite3.Error as error:
            self.close()
            raise OpenError(_cannot_open(path, error)) from error
        self.names = frozenset(name for name, *_ in entries)
        self.views = frozenset(name for name, kind, _ in entries if kind == "view")
        self.virtual_tables = frozenset(name for name, _, sql in entries if sql.upper().startswith("CREATE VIRTUAL"))

    def stable(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """What `read` gets from a new connection, once more where the file changed beneath one that holds no lock.

        Raises what `read` raises, sqlite3.Error, or OpenError.
        """
        for _ in range(_TRIES):
            way = self._way()
            try:
                with closing(_connected(way)) as connection:
                    outcome = read(connection)
            except sqlite3.Error as error:
                if not self._has_moved(way, error):
                    raise
            else:
                if way.stamp is None or way.stamp == _stamp(self._path):
                    return outcome
        raise OpenError(_is_being_written(self._path))

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """One connection for several reads; all of them see one state where the file is in WAL mode.

        Raises OpenError, also at the end, where the file changed beneath it.
        """
        way = self._way()
        with closing(_connected(way)) as connection:
            if way.options == _SHARED:  # in other modes a transaction would keep writers out for as long as it lasts
                connection.execute("BEGIN")
            yield connection
        if way.stamp is not None and way.stamp != _stamp(self._path):
            raise OpenError(_is_being_written(self._path))

    def schema(self) -> Schema:
        """Read the schema anew. Raises OpenError."""
        try:
            return Schema(self.stable(read_schema), "sqlite")
        except sqlite3.Error as error:
            reason = f"it takes longer than {DEADLINE_S:g} s" if is_interrupt(error) else error
            raise OpenError(f"cannot read the tables of {self._path}: {reason}") from error

    def close(self) -> None:
        """Remove the private copy, if there is one."""
        self._remove_copy()

    def _way(self) -> _Way:
        """How to open the file as it stands now. Raises OpenError."""
        try:
            with self._path.open("rb") as file:
                header = file.read(20)
            stamp = _stamp(self._path)
        except OSError as error:
            raise OpenError(f"cannot read {self._path}: {error.strerror or error}") from error
        if not header.startswith(MAGIC):
            raise OpenError(f"{self._path} is not a SQLite database")
        has_wal, has_journal = (_size(self._path, suffix) for suffix in ("-wal", "-journal"))
        if header[18] != _WAL_VERSION:
            return self._recovered(stamp) if has_journal and _is_hot(self._path) else _Way(self._path, _MINE)
        if not has_wal:
            return _Way(self._path, _ALONE, stamp)
        return _Way(self._path, _SHARED) if _beside(self._path, "-shm").exists() else self._recovered(stamp)

    def _has_moved(self, way: _Way, error: sqlite3.Error) -> bool:
        """Whether an error came from the file's changing, so that another try may go well."""
        if way.stamp is not None:
            return way.stamp != _stamp(self._path) and not is_interrupt(error)
        return error_code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY_ROLLBACK)

    def _recovered(self, stamp: _Stamp) -> _Way:
        """A private copy of the file and of its pending writes, which SQLite has finished or undone there."""
        with self._lock:
            if self._folder is None:
                self._folder = new_folder()
                self._remove_copy = weakref.finalize(self, remove_folder, self._folder)
            copy = self._folder / "copy.sqlite"
            if self._copied != stamp:
                copy = _recovered_copy(self._path, self._folder)
                self._copied = stamp
            return _Way(copy, _MINE, stamp)


def _nothing() -> None:
    """What closing a file that was not copied takes."""


def _entries(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    return connection.execute("SELECT name, type, coalesce(sql, '') FROM sqlite_master").fetchall()


def _connected(way: _Way) -> sqlite3.Connection:
    """A new connection that trusts nothing in the file; text that is not UTF-8 is decoded as the evaluators do."""
    uri = f"file:{quote(str(way.path.absolute()))}?{way.options}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.text_factory = lambda raw: raw.decode(errors="ignore")
    return connection


def _is_hot(path: Path) -> bool:
    """Whether the journal beside the file is one that a killed program left, and not one of a transaction that goes on."""
    try:
        with closing(_connected(_Way(path, _MINE))) as connection:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.Error as error:
        return error.sqlite_errorcode == sqlite3.SQLITE_READONLY_ROLLBACK
    return False


def _beside(path: Path, suffix: str) -> Path:
    return Path(f"{path}{suffix}")


def _size(path: Path, suffix: str) -> int:
    try:
        return _beside(path, suffix).stat().st_size
    except FileNotFoundError:
        return 0


def _stamp(path: Path) -> _Stamp:
    """Which file it is, how large, and when it was last written; the same of its pending writes."""
    found = []
    for suffix in ("", "-wal", "-journal"):
        try:
            status = _beside(path, suffix).stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append((0, 0, 0))
    return tuple(found)


def _recovered_copy(path: Path, folder: Path) -> Path:
    copy = folder / "copy.sqlite"
    for suffix in ("", "-wal", "-journal", "-shm"):
        _beside(copy, suffix).unlink(missing_ok=True)
        if suffix != "-shm" and _beside(path, suffix).exists():
            shutil.copyfile(_beside(path, suffix), _beside(copy, suffix))
    with closing(sqlite3.connect(copy)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            raise OpenError(_cannot_open(path, error)) from error
    return copy


def _cannot_open(path: Path, error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return _is_being_written(path)
    return f"cannot open {path} as a SQLite database: {error}"


def _is_being_written(path: Path) -> str:
    return f"{path} is being written by another program; try again when it is done"
