"""Rows and values that show what columns hold: samples, and the values of columns that have only a few (flags, codes, states).

The latter are read once per open database, half a second per column and three seconds in all at most; columns whose turn does
not come have none.

What was read of files is kept on disk for later processes: values, and schemas. It belongs to the files by their paths, inodes,
sizes and times of change, those of write-ahead logs included; values also to the tables, columns and rows that may be seen, so
what is hidden is in no file of those from whom it is hidden; schemas also to the code that reads them. Only this user can read
it. The newest stay, 64 MB of them; databases on servers have none.
"""

import hashlib
import os
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import ormsgpack
from pydantic import TypeAdapter, ValidationError

from tools.databases.database import Database, Distinct
from tools.result import Limits, QueryError
from tools.schema import Column, ColumnRef, Schema, Table, derived
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
SUFFIX = ".values"

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
            stored = _STORED.validate_python(ormsgpack.unpackb(read_file(path)), strict=False)
        except (OSError, ValueError, ValidationError):
            return {}
        return {(table, column): (values, complete) for table, column, values, complete in stored}

    def write(self, kind: str, seen: Schema, values: Values) -> None:
        """Keep all of them. Where that is not possible they are read again next time."""
        stored = [(table, column, list(found), complete) for (table, column), (found, complete) in values.items()]
        with suppress(OSError, ormsgpack.MsgpackEncodeError):
            data = ormsgpack.packb(stored)
            if len(data) <= LARGEST_BYTES:
                write_file(self._path(kind, seen), data)

    def _path(self, kind: str, seen: Schema) -> Path:
        key = hashlib.sha256(repr((self.files, kind, _digest(seen))).encode()).hexdigest()[:32]
        return self.folder / f"{key}{SUFFIX}"


@derived
def _digest(seen: Schema) -> str:
    columns = [(table.name, column.name, column.type) for table in seen.tables for column in table.columns]
    rules = [(table.name, table.rule) for table in seen.tables if table.rule]
    return hashlib.sha256(repr((columns, rules) if rules else columns).encode()).hexdigest()


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
    database: Database, kind: str, columns: Sequence[ColumnRef], read: Callable[[Sequence[ColumnRef]], Values]
) -> Values:
    """The values of columns, from the disk or by `read`, which leaves out columns that it did not read to their end."""
    kept, seen = _KEPT.get(database), database.schema()
    known = dict(kept.read(kind, seen)) if kept else {}
    before, missing = len(known), [column for column in columns if column not in known]
    known |= read(missing) if missing else {}
    if kept and len(known) > before:
        kept.write(kind, seen, known)
    return {column: known[column] for column in columns if column in known}


SMALL_TABLE = 20_000
"""Rows. Columns of smaller tables are read together: a statement costs more than it reads there."""
COLUMNS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class DistinctValues:
    """Reads the distinct values of columns, some columns with one statement.

    most: how many values of a column. longest: values that are longer are left out. column_s: time for one statement.
    """

    database: Database
    most: int
    longest: int
    column_s: float

    def read(self, columns: Sequence[tuple[Table, Column]], until: float) -> Iterator[dict[ColumnRef, list[Any]]]:
        """The values, without NULL, of a few columns at a time, in no order; one more than `most` where there are more.

        Columns that could not be read, or not before `until` (by `time.perf_counter`), are left out.
        """
        for batch in self._batches(columns):
            found = self._read(batch, until)
            if found is None and len(batch) > 1:  # one of them cannot be read
                singly = (self._read([each], until) for each in batch)
                found = {place: values for one in singly if one for place, values in one.items()}
            yield found or {}

    def _batches(self, columns: Sequence[tuple[Table, Column]]) -> Iterator[list[tuple[Table, Column]]]:
        """Columns of small tables that have one type; others alone."""
        waiting: dict[str, list[tuple[Table, Column]]] = defaultdict(list)
        rows: dict[str, int] = Counter()
        for table, column in columns:
            count = table.row_count if table.row_count is not None else SMALL_TABLE
            if count >= SMALL_TABLE:
                yield [(table, column)]
                continue
            if rows[column.type] + count > SMALL_TABLE or len(waiting[column.type]) == COLUMNS_AT_ONCE:
                yield waiting.pop(column.type)
                rows[column.type] = 0
            waiting[column.type].append((table, column))
            rows[column.type] += count
        yield from filter(None, waiting.values())

    def _read(self, batch: Sequence[tuple[Table, Column]], until: float) -> dict[ColumnRef, list[Any]] | None:
        left_s = until - time.perf_counter()
        if left_s <= 0:
            return {}
        places = [(table.name, column.name) for table, column in batch]
        limits = Limits(deadline_s=min(self.column_s, left_s), max_rows=(self.most + 1) * len(batch))
        result = self.database.distinct(Distinct(tuple(places), self.most + 1, self.longest), limits)
        if isinstance(result, QueryError):
            return {} if result.kind in ("timeout", "interrupted", "connection") else None
        found: dict[ColumnRef, list[Any]] = {place: [] for place in places}
        for number, value in result.rows:
            found[places[number]].append(value)
        return found


def _stamp(file: Path) -> tuple[int, int, int, int]:
    stat = file.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def read_file(path: Path) -> bytes:
    """What is kept there, which counts as used now. Raises OSError."""
    data = path.read_bytes()
    os.utime(path)
    return data


def write_file(path: Path, data: bytes) -> None:
    """Keep it for this user alone, and let go of what was not used for longest. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")  # 0600
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    _prune(path.parent)


def _prune(folder: Path) -> None:
    files = sorted(((file.stat().st_mtime_ns, file) for file in folder.glob(f"*{SUFFIX}")), reverse=True)
    total = 0
    for _, file in files:
        total += file.stat().st_size
        if total > MOST_BYTES:
            file.unlink(missing_ok=True)


_STORED_SCHEMA = TypeAdapter(tuple[str, tuple[Table, ...], frozenset[str]])
"""The dialect, the tables, and the types that were made there."""


@dataclass(frozen=True, slots=True)
class SchemaCache:
    """Where the schema of one database is kept. files: see `tools.databases.choices.identity_of`."""

    folder: Path
    files: str

    def read(self, reader: str) -> Schema | None:
        """The schema as `reader`, the name of a database's class, read it; None where it is not there or damaged."""
        try:
            stored = ormsgpack.unpackb(read_file(self._path(reader)))
            dialect, tables, own_types = _STORED_SCHEMA.validate_python(stored, strict=False)
        except (OSError, ValueError, ValidationError):
            return None
        return Schema(tables, dialect, own_types)

    def write(self, reader: str, schema: Schema) -> None:
        """Keep it. Where that is not possible it is read again next time."""
        known = (schema.dialect, schema.tables, schema.own_types)
        with suppress(OSError, ormsgpack.MsgpackEncodeError):
            data = ormsgpack.packb(_STORED_SCHEMA.dump_python(known, mode="json", exclude_defaults=True))
            if len(data) <= LARGEST_BYTES:
                write_file(self._path(reader), data)

    def _path(self, reader: str) -> Path:
        code = identity_of(sorted(Path(__file__).parent.glob("**/*.py")))
        key = hashlib.sha256(repr((self.files, reader, code)).encode()).hexdigest()[:32]
        return self.folder / f"{key}{SUFFIX}"


MOST_CHOICES = 6
LONGEST_CHOICE = 12
LARGEST_CODE = 9  # larger whole numbers count or measure something
COLUMN_DEADLINE_S = 0.5
DEADLINE_S = 3.0

_CHOICES: WeakKeyDictionary[Database, dict[str, dict[str, tuple[str, ...]]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def with_choices(schema: Schema, database: Database) -> Schema:
    """The schema, or a part of it, with the choices of its columns, which are read for the tables of this part alone."""
    with _LOCK:
        known = _CHOICES.setdefault(database, {})
        new = [table for table in schema.tables if table.name not in known]
        found = _read(database, new) if new else {}
        for table in new:
            known[table.name] = {name: values for (owner, name), values in found.items() if owner == table.name}
        return replace(schema, tables=tuple(_chosen(table, known[table.name]) for table in schema.tables))


def _chosen(table: Table, choices: Mapping[str, tuple[str, ...]]) -> Table:
    return replace(table, columns=tuple(replace(c, choices=choices.get(c.name, ())) for c in table.columns))


def _read(database: Database, tables: Sequence[Table]) -> dict[ColumnRef, tuple[str, ...]]:
    """The choices of these tables, of which the database's schema says more: all of their keys."""
    until, schema = time.perf_counter() + DEADLINE_S, database.schema()
    whole = [schema.table(table.name) or table for table in tables]
    candidates = {(table.name, column.name): (table, column) for table, column in _candidates(whole)}
    reader = DistinctValues(database, MOST_CHOICES, 0, COLUMN_DEADLINE_S)

    def read(places: Sequence[ColumnRef]) -> Values:
        wanted = [candidates[place] for place in places]
        read = {place: values for batch in reader.read(wanted, until) for place, values in batch.items()}
        return {place: (_few(*candidates[place], values), True) for place, values in read.items()}

    found = read_or_kept(database, "choices", list(candidates), read)
    return {place: tuple(values) for place, (values, _) in found.items() if values}


def _candidates(tables: Sequence[Table]) -> list[tuple[Table, Column]]:
    """Columns that may have few values, as far as their samples tell, and that are no keys."""
    keys = {(table.name, name) for table in tables for key in table.foreign_keys for name in key.columns}
    return [
        (table, column)
        for table in tables
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


def _few(table: Table, column: Column, values: Sequence[Any]) -> tuple[str, ...]:
    """All values in order; none if there are too many, too long ones, or if hardly any occurs twice."""
    if len(values) > MOST_CHOICES:
        return ()
    texts = sorted(_text(value) for value in values if value != "")
    few = table.row_count is None or 2 * len(texts) <= table.row_count
    fits = all(len(text.strip()) > 0 and len(text) <= LONGEST_CHOICE for text in texts)
    coded = type_kind(column.type) in ("text", "boolean") or all(map(_is_code, texts))
    return tuple(texts) if few and fits and coded else ()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
