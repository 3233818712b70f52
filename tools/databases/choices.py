"""Rows and values that show what columns hold.

Takes at most so many rows and so many bytes from a cursor. Runs no SQL.

Chooses the few values that show what a column holds. Reads rows it is given; runs no SQL.

Values of columns that were read before, on disk: the same files in a later process need not be read for them again.

A file of values belongs to files of data by their paths, inodes, sizes and times of change, those of write-ahead logs
included, and to the tables and columns that may be seen: what is hidden is in no file of those from whom it is hidden.
Only this user can read it. The newest stay, 64 MB of them; databases on servers have none.

The values of columns that have only a few: flags, codes, states. Read once per open database, in bounded time.

Half a second per column and three seconds in all at most; columns whose turn does not come have no choices.
"""

import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import ormsgpack
from pydantic import TypeAdapter, ValidationError
from sqlglot import exp

from tools.databases.database import Database
from tools.result import Limits, QueryError
from tools.schema import Column, ColumnRef, Schema, Table
from tools.sql.scope import type_kind

BATCH = 32


def fetch_rows(
    fetchmany: Callable[[int], Sequence[Sequence[Any]]], limits: Limits
) -> tuple[tuple[tuple[Any, ...], ...], bool]:
    """The first `limits.max_rows` rows, and whether there was one more.

    Raises MemoryError when the rows weigh more than `limits.memory_limit_mb` MiB: what an engine hands over is no longer
    in the memory that the engine limits.
    """
    rows: list[tuple[Any, ...]] = []
    room = limits.memory_limit_mb << 20
    while wanted := limits.max_rows + 1 - len(rows):
        batch = fetchmany(min(BATCH, wanted))
        if not batch:
            break
        room -= sum(sys.getsizeof(value) for row in batch for value in row)
        if room < 0:
            raise MemoryError(f"the rows take more than {limits.memory_limit_mb} MiB; select fewer or shorter columns")
        rows.extend(tuple(row) for row in batch)
    return tuple(rows[: limits.max_rows]), len(rows) > limits.max_rows


ROWS_LOOKED_AT = 200
MAX_LENGTH = 40
PER_COLUMN = 3
VIEWS_S = 3.0
"""For all views of a database together: what they run is somebody's SQL."""


def samples(rows: Iterable[Sequence[Any]], width: int) -> list[tuple[str, ...]]:
    """For each of `width` columns its first three distinct values of at most 40 characters, without NULL and blanks.

    First seen, not commonest: deterministic, and bounded by the 200 rows that callers fetch.
    """
    found: list[dict[str, None]] = [{} for _ in range(width)]
    for row in rows:
        for seen, value in zip(found, row, strict=True):
            if len(seen) < PER_COLUMN and value is not None and not isinstance(value, bytes):
                text = str(value)
                if text.strip() and len(text) <= MAX_LENGTH:
                    seen.setdefault(text)
    return [tuple(seen) for seen in found]


MOST_BYTES = 64 << 20
LARGEST_BYTES = 16 << 20
_LOGS = ("-wal", "-journal", ".wal")
_SUFFIX = ".values"

Values = Mapping[ColumnRef, tuple[Sequence[str], bool]]
"""The distinct values of columns, and whether these are all."""

_STORED = TypeAdapter(list[tuple[str, str, list[str], bool]])


@dataclass(frozen=True, slots=True)
class ValueCache:
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


_KEPT: WeakKeyDictionary[Database, ValueCache] = WeakKeyDictionary()


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
        _KEPT[database] = ValueCache(folder, files)


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


MOST_CHOICES = 6
LONGEST_CHOICE = 12
LARGEST_CODE = 9  # larger whole numbers count or measure something
COLUMN_DEADLINE_S = 0.5
DEADLINE_S = 3.0

_CHOICES: WeakKeyDictionary[Database, dict[ColumnRef, tuple[str, ...]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def with_choices(schema: Schema, database: Database) -> Schema:
    """The schema, or a part of it, with the choices of its columns."""
    with _LOCK:
        if database not in _CHOICES:
            _CHOICES[database] = _read(database)
        return chosen(schema, _CHOICES[database])


def chosen(schema: Schema, choices: dict[ColumnRef, tuple[str, ...]]) -> Schema:
    """The schema with these choices."""
    return replace(
        schema,
        tables=tuple(
            replace(t, columns=tuple(replace(c, choices=choices.get((t.name, c.name), ())) for c in t.columns))
            for t in schema.tables
        ),
    )


def _read(database: Database) -> dict[ColumnRef, tuple[str, ...]]:
    until = time.perf_counter() + DEADLINE_S
    candidates = {(table.name, column.name): (table, column) for table, column in _candidates(database.schema())}

    def read(place: ColumnRef) -> tuple[tuple[str, ...], bool] | None:
        left_s = until - time.perf_counter()
        found = _values(database, *candidates[place], min(left_s, COLUMN_DEADLINE_S)) if left_s > 0 else None
        return None if found is None else (found, True)

    found = read_or_kept(database, "choices", list(candidates), read)
    return {place: tuple(values) for place, (values, _) in found.items() if values}


def _candidates(schema: Schema) -> list[tuple[Table, Column]]:
    """Columns that may have few values, as far as their samples tell, and that are no keys."""
    keys = {(table.name, name) for table in schema.tables for key in table.foreign_keys for name in key.columns}
    return [
        (table, column)
        for table in schema.tables
        for column in table.columns
        if not column.primary_key and (table.name, column.name) not in keys and _may_have_few(column)
    ]


def _may_have_few(column: Column) -> bool:
    if not column.samples or max(map(len, column.samples)) > LONGEST_CHOICE:
        return False
    kind = type_kind(column.type)
    return kind in ("text", "boolean") or (len(column.samples) < 3 and all(map(_is_code, column.samples)))


def _is_code(text: str) -> bool:
    return text.isdecimal() and int(text) <= LARGEST_CODE


def _values(database: Database, table: Table, column: Column, deadline_s: float) -> tuple[str, ...] | None:
    """All values in order; none if there are too many, too long ones, or if hardly any occurs twice.

    None where they could not be read.
    """
    name = exp.column(column.name, quoted=True)
    home, _, own = table.name.rpartition(".")
    query = exp.select(name).distinct().from_(exp.table_(own, db=home or None, quoted=True))
    query = query.where(name.copy().is_(exp.null()).not_()).limit(MOST_CHOICES + 1)
    result = database.execute(query.sql(database.dialect), Limits(deadline_s=deadline_s, max_rows=MOST_CHOICES + 1))
    if isinstance(result, QueryError):
        return None
    if len(result.rows) > MOST_CHOICES:
        return ()
    texts = sorted(_text(value) for (value,) in result.rows if value != "")
    few = table.row_count is None or 2 * len(texts) <= table.row_count
    fits = all(len(text.strip()) > 0 and len(text) <= LONGEST_CHOICE for text in texts)
    coded = type_kind(column.type) in ("text", "boolean") or all(map(_is_code, texts))
    return tuple(texts) if few and fits and coded else ()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
