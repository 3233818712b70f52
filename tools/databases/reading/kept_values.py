"""Values of columns that were read before, on disk: the same files in a later process need not be read for them again.

A file of values belongs to files of data by their paths, inodes, sizes and times of change, those of write-ahead logs
included, and to the tables and columns that may be seen: what is hidden is in no file of those from whom it is hidden.
Only this user can read it. The newest stay, 64 MB of them; databases on servers have none.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import ormsgpack
from pydantic import TypeAdapter, ValidationError

from tools.databases.database import Database
from tools.schema import ColumnRef, Schema

MOST_BYTES = 64 << 20
LARGEST_BYTES = 16 << 20
_LOGS = ("-wal", "-journal", ".wal")
_SUFFIX = ".values"

Values = Mapping[ColumnRef, tuple[Sequence[str], bool]]
"""The distinct values of columns, and whether these are all."""

_STORED = TypeAdapter(list[tuple[str, str, list[str], bool]])


@dataclass(frozen=True, slots=True)
class KeptValues:
    """Where values of one database are kept. files: see `identity_of`."""

    folder: Path
    files: str

    def read(self, kind: str, seen: Schema) -> Values:
        """What is known of this kind; nothing where the file is not there or damaged."""
        path = self._path(kind, seen)
        try:
            stored = _STORED.validate_python(ormsgpack.unpackb(path.read_bytes()), strict=False)
            os.utime(path)  # used last
        except (OSError, ValueError, ValidationError):
            return {}
        return {(table, column): (values, complete) for table, column, values, complete in stored}

    def write(self, kind: str, seen: Schema, values: Values) -> None:
        """Keep all of them. Where that is not possible they are read again next time."""
        stored = [(table, column, list(found), complete) for (table, column), (found, complete) in values.items()]
        with suppress(OSError, ormsgpack.MsgpackEncodeError):
            data = ormsgpack.packb(stored)
            if len(data) <= LARGEST_BYTES:
                _write(self._path(kind, seen), data)
                _prune(self.folder)

    def _path(self, kind: str, seen: Schema) -> Path:
        columns = [(table.name, column.name, column.type) for table in seen.tables for column in table.columns]
        key = hashlib.sha256(repr((self.files, kind, columns)).encode()).hexdigest()[:32]
        return self.folder / f"{key}{_SUFFIX}"


_KEPT: WeakKeyDictionary[Database, KeptValues] = WeakKeyDictionary()


def identity_of(paths: Sequence[Path]) -> str:
    """What changes when the data of files or folders change; empty where they cannot be looked at.

    To be asked for before they are opened, lest values read before a change were kept for what came after it.
    """
    try:
        files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
        logs = [log for file in files for suffix in _LOGS if (log := file.with_name(file.name + suffix)).exists()]
        return repr([(str(file.resolve()), *_stamp(file)) for file in (*files, *logs)])
    except OSError:
        return ""


def keep_values(database: Database, folder: Path, files: str) -> None:
    """Keep the database's values in a folder from now on. files: see `identity_of`."""
    if files:
        _KEPT[database] = KeptValues(folder, files)


def keep_values_alike(database: Database, other: Database) -> None:
    """Keep the values of `database` where those of `other` are, if they are kept: it holds the same data."""
    if other in _KEPT:
        _KEPT[database] = _KEPT[other]


def read_or_kept(
    database: Database,
    kind: str,
    columns: Sequence[ColumnRef],
    read: Callable[[ColumnRef], tuple[Sequence[str], bool] | None],
) -> Values:
    """The values of columns, from the disk or by `read`, which returns None where a column was not read to its end."""
    kept, seen = _KEPT.get(database), database.schema()
    known = dict(kept.read(kind, seen)) if kept else {}
    before, found = len(known), {}
    for column in columns:
        values = known.get(column) or read(column)
        if values is not None:
            known[column] = found[column] = values
    if kept and len(known) > before:
        kept.write(kind, seen, known)
    return found


def _stamp(file: Path) -> tuple[int, int, int, int]:
    stat = file.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")  # 0600
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _prune(folder: Path) -> None:
    files = sorted(((file.stat().st_mtime_ns, file) for file in folder.glob(f"*{_SUFFIX}")), reverse=True)
    total = 0
    for _, file in files:
        total += file.stat().st_size
        if total > MOST_BYTES:
            file.unlink(missing_ok=True)
