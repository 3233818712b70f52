"""SQLite's schema, and SQLite files that are opened for reading alone.

Views and generated columns are somebody's SQL, which runs when they are sampled; time and the length of values are bounded.

SQLite's own locks hold where they can: a file in another mode than WAL is opened with `mode=ro`, one in WAL mode that a
program has open with `readonly_shm` as well, so that not even the index of its log is touched. A file in WAL mode that nobody
has open cannot be opened so without making `-wal` and `-shm` files next to it. It is read as immutable, and read again where it
turns out to have changed meanwhile. Writes that a killed program left unfinished, which SQLite could only finish or undo by
writing, are finished in a private copy, which is made again when the file changes.
"""

import shutil
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.databases.choices import MAX_LENGTH, ROWS_LOOKED_AT, VIEWS_S, samples
from tools.processes import new_folder, remove_folder
from tools.result import OpenError
from tools.schema import Column, ForeignKey, Schema, Table, words_of
from tools.sql.scope import parse_quietly

COUNTED_ROWS = 1_000_000
"""SQLite counts by walking the table (about 50 ms per million rows); a larger table's count stays unknown."""

DEADLINE_S = 60.0
LONGEST_VALUE = 64 << 20  # bytes
_TABLES = """
SELECT name, type, coalesce(sql, '') FROM sqlite_master
WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
ORDER BY type, rowid
"""
_VIRTUAL = "CREATE VIRTUAL"
_COMPUTED = (2, 3)  # what `PRAGMA table_xinfo` says of generated columns


def read_schema(connection: sqlite3.Connection) -> tuple[Table, ...]:
    """Tables in order of creation, then views; without the tables that a virtual table keeps its data in.

    A view or virtual table that SQLite itself cannot read (a missing table or module) is left out. A view that takes long, or
    makes values that are too long, has no samples. Raises sqlite3.Error, with SQLITE_INTERRUPT after `DEADLINE_S`.
    """
    clock = _Clock(connection)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    entries = connection.execute(_TABLES).fetchall()
    shadows = tuple(name.lower() + "_" for name, _, sql in entries if sql.upper().startswith(_VIRTUAL))
    tables = []
    for name, kind, sql in entries:
        if not (shadows and name.lower().startswith(shadows)):
            try:
                tables.append(_table(connection, clock, name, kind == "table", sql))
            except sqlite3.OperationalError as error:
                if is_interrupt(error):
                    raise
    by_name = {table.name.lower(): table for table in tables}
    return tuple(_resolved(table, by_name) for table in tables)


def quoted(name: str) -> str:
    """`name` as an identifier that no keyword and no character can break."""
    return '"' + name.replace('"', '""') + '"'


def is_interrupt(error: sqlite3.Error) -> bool:
    """Whether a statement was stopped."""
    return error_code(error) == sqlite3.SQLITE_INTERRUPT


def error_code(error: sqlite3.Error) -> int | None:
    """SQLite's code of an error; the module's own errors have none."""
    return getattr(error, "sqlite_errorcode", None)


class _Clock:
    """Stops what a connection runs when its time is up."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._until_s = self._given_up_s = monotonic() + DEADLINE_S
        self._left_for_views_s = VIEWS_S
        connection.set_progress_handler(lambda: monotonic() > self._until_s, 10_000)

    @contextmanager
    def of_views(self) -> Iterator[None]:
        """What runs inside takes from the time that views have together."""
        started_s = monotonic()
        self._until_s = min(self._given_up_s, started_s + self._left_for_views_s)
        try:
            yield
        finally:
            self._left_for_views_s -= monotonic() - started_s
            self._until_s = self._given_up_s


def _table(connection: sqlite3.Connection, clock: _Clock, name: str, is_table: bool, sql: str) -> Table:
    info = [row for row in connection.execute(f"PRAGMA table_xinfo({quoted(name)})") if row[6] != 1]
    if not info:
        raise sqlite3.OperationalError(f"{name} has no columns")
    comment, column_comments = _comments(sql)
    computed = {row[1] for row in info if row[6] in _COMPUTED}
    try:
        with nullcontext() if is_table else clock.of_views():
            first = _first_rows(connection, name, [row[1] for row in info])
    except sqlite3.Error as error:
        if error_code(error) != sqlite3.SQLITE_TOOBIG and (is_table or not is_interrupt(error)):
            raise
        first = None
    values = samples(first or (), len(info))
    columns = tuple(
        Column(
            column,
            type_,
            key > 0,
            not (not_null or key),
            column_comments.get(column.lower(), ""),
            found,
            words_of(_expression(sql, column)) if column in computed else frozenset(),
        )
        for (_, column, type_, not_null, _, key, _), found in zip(info, values, strict=True)
    )
    count = _count(connection, name, first) if is_table else None
    is_stored = is_table and not sql.upper().startswith(
        _VIRTUAL
    )  # a virtual one may show the rows or the words of another
    made_of = frozenset[str]() if is_stored else words_of(sql)
    return Table(name, columns, _foreign_keys(connection, name), comment, count, made_of)


def _foreign_keys(connection: sqlite3.Connection, name: str) -> tuple[ForeignKey, ...]:
    """In the order of the DDL (SQLite lists the last first); without ref_columns where the DDL leaves them out."""
    grouped: dict[int, list[tuple[str, str, str | None]]] = {}
    for id_, _, ref_table, column, ref_column, *_ in connection.execute(f"PRAGMA foreign_key_list({quoted(name)})"):
        grouped.setdefault(id_, []).append((column, ref_table, ref_column))
    return tuple(
        ForeignKey(tuple(row[0] for row in rows), rows[0][1], tuple(row[2] for row in rows if row[2]))
        for _, rows in sorted(grouped.items(), reverse=True)
    )


def _resolved(table: Table, by_name: Mapping[str, Table]) -> Table:
    """Foreign keys in the spelling of the tables they refer to; REFERENCES without columns means the primary key.

    A key to a table or a column that does not exist is dropped: nothing could be joined by it.
    """
    keys = []
    for key in table.foreign_keys:
        target = by_name.get(key.ref_table.lower())
        if target is None:
            continue
        wanted = key.ref_columns or tuple(column.name for column in target.columns if column.primary_key)
        own, theirs = [table.column(name) for name in key.columns], [target.column(name) for name in wanted]
        if len(own) == len(theirs) and None not in own and None not in theirs:
            names = tuple(column.name for column in own if column), tuple(column.name for column in theirs if column)
            keys.append(ForeignKey(names[0], target.name, names[1]))
    return replace(table, foreign_keys=tuple(keys)) if keys or table.foreign_keys else table


def _count(connection: sqlite3.Connection, name: str, first: Sequence[object] | None) -> int | None:
    """The number of rows, of which the first may be all; None where counting would cost too much."""
    if first is not None and len(first) < ROWS_LOOKED_AT:
        return len(first)
    bounded = f"SELECT count(*) FROM (SELECT 1 FROM {quoted(name)} LIMIT {COUNTED_ROWS + 1})"
    count = int(connection.execute(bounded).fetchone()[0])
    return count if count <= COUNTED_ROWS else None


def _first_rows(connection: sqlite3.Connection, name: str, columns: list[str]) -> list[tuple[object, ...]]:
    short = ", ".join(
        f"CASE WHEN typeof({column}) = 'text' THEN substr({column}, 1, {MAX_LENGTH + 1})"
        f" WHEN typeof({column}) <> 'blob' THEN {column} END"
        for column in map(quoted, columns)
    )
    return connection.execute(f"SELECT {short} FROM {quoted(name)} LIMIT {ROWS_LOOKED_AT}").fetchall()


def _expression(sql: str, column: str) -> str:
    """What computes the generated column, by the table's DDL; all of the DDL where it cannot be told apart."""
    try:
        definitions = parse_quietly(sql, "sqlite")[0].find_all(exp.ColumnDef)
        definition = next(each for each in definitions if each.name.casefold() == column.casefold())
    except (SqlglotError, RecursionError, LookupError, StopIteration):
        return sql
    computed = definition.find(exp.ComputedColumnConstraint, exp.GeneratedAsIdentityColumnConstraint)
    return sql if computed is None else " ".join(each.name for each in computed.find_all(exp.Identifier))


def _comments(sql: str) -> tuple[str, dict[str, str]]:
    """What the comments of a CREATE TABLE say of the table and, by lower-case name, of its columns.

    SQLite keeps the text of the statement, comments included, and has no other place for them.
    """
    if "--" not in sql and "/*" not in sql:
        return "", {}
    try:
        create = parse_quietly(sql, "sqlite")[0]
    except (SqlglotError, RecursionError, IndexError):
        return "", {}
    columns = {}
    for definition in create.find_all(exp.ColumnDef):
        said = dict.fromkeys(text.strip() for node in definition.walk() for text in node.comments or [])
        columns[definition.name.lower()] = "; ".join(filter(None, said))
    return "; ".join(text.strip() for text in create.comments or []), columns


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
        """Read the schema again. Raises OpenError."""
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
    """Whether the journal next to the file is one that a killed program left, and not one of a transaction that goes on."""
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
