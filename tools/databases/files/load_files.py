"""Loads files into a database, in a process that can be ended.

DuckDB reads CSV, JSON and Parquet itself; Excel and SQLite have their own modules. The copy lies in a temporary folder of
this user, never next to a source.
"""

import os
import resource
import signal
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import duckdb
import ormsgpack
from pydantic import TypeAdapter

from tools.databases.duckdb_catalog import literal, quoted
from tools.databases.duckdb_database import Copy, DuckDBDatabase
from tools.databases.files.file_kinds import FileKind, TableNames, leave_out, stem, tell
from tools.databases.files.loaders import (
    VIEW_DEADLINE_S,
    Loaded,
    load_csv,
    load_json,
    load_parquet,
    load_sqlite,
    load_workbook,
)
from tools.databases.files.sheets import DETECTED, Choices, Sheet
from tools.databases.query_process import Bounds, ending_with, lower
from tools.processes import Watchdog, new_folder, remove_folder, spill_folder
from tools.result import Limits, OpenError
from tools.schema import Table

Loader = Callable[[duckdb.DuckDBPyConnection, Path, TableNames, Choices], Loaded]


@dataclass(frozen=True, slots=True)
class Copied:
    """Tables that were copied, first come first, what their sources said of them (name -> table), the files that could not be
    read, with the reason, how the tables of CSV files and workbooks were read, and what else a person should know."""

    names: tuple[str, ...]
    notes: dict[str, Table]
    left_out: tuple[tuple[Path, str], ...] = ()
    sheets: tuple[Sheet, ...] = ()
    told: tuple[str, ...] = ()


Copier = Callable[[Sequence[tuple[Path, FileKind]], Path, Collection[Path]], Copied]


def copy_files(
    files: Sequence[tuple[Path, FileKind]],
    copy: Path,
    optional: Collection[Path] = (),
    memory_mb: int | None = None,
    choices: Choices = DETECTED,
) -> Copied:
    """Copy all tables of `files` into a new DuckDB file. `optional`: those that are left out if they cannot be read, as long as
    there is another. `choices`: how sheets are read, where somebody chose that. Raises OpenError, naming the file at
    fault.
    """
    names, notes, left_out = TableNames(), dict[str, Table](), list[tuple[Path, str]]()
    sheets, told = list[Sheet](), list[str]()
    try:
        with duckdb.connect(str(copy), config=_loading_config(memory_mb)) as connection:
            for file, kind in files:
                try:
                    loaded = LOADERS[kind](connection, file, names, choices)
                    notes |= loaded.notes
                    sheets += loaded.sheets
                    told += loaded.told
                except OpenError as error:
                    if file not in optional or len(left_out) + 1 == len(files):
                        raise
                    left_out.append((file, str(error)))
            there = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    except duckdb.Error as error:  # the copy itself: no room for it, most likely
        reason = str(error).strip().splitlines()[0]
        raise OpenError(f"cannot write to {copy.parent}, where temporary files go: {reason}") from error
    return Copied(
        tuple(name for name in names.in_order if name in there), notes, tuple(left_out), tuple(sheets), tuple(told)
    )


def load_files(
    files: Sequence[tuple[Path, FileKind]], name: str, copy: Copier = copy_files, optional: Collection[Path] = ()
) -> DuckDBDatabase:
    """A database of all tables of `files`; `optional` as for `copy_files`, with a `LeftOut` warning. Raises OpenError, naming
    the file at fault.
    """
    folder = new_folder()
    path = folder / "data.duckdb"
    try:
        copied = copy(files, path, optional)
        for file, reason in copied.left_out:
            leave_out(file, reason)
        tell([*copied.told, *(line for sheet in copied.sheets for line in sheet.warnings())])
        return DuckDBDatabase(path, name, Copy(folder, copied.names, copied.notes))
    except BaseException:
        remove_folder(folder)
        raise


def _loading_config(memory_mb: int | None) -> dict[str, str | bool | int | float | list[str]]:
    bound = {"memory_limit": f"{memory_mb}MiB"} if memory_mb else {}
    return {
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "temp_directory": str(spill_folder()),
        **bound,
    }


def load_duckdb(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames, choices: Choices) -> Loaded:
    """Every table of a DuckDB file; views become tables, and one that fails or takes over 10 s is left out.

    Raises OpenError.
    """
    original = DuckDBDatabase(path, stem(path))
    tables = original.schema().tables
    original.close()
    called = {table.name: names.keep(table.name.rpartition(".")[2], f"{stem(path)}_{table.name}") for table in tables}
    try:
        connection.execute(f"ATTACH {literal(str(path))} AS source (READ_ONLY)")
        for table in tables:
            schema, _, bare = table.name.rpartition(".")
            origin = f"source.{quoted(schema or 'main')}.{quoted(bare)}"
            if not _copied_table(connection, origin, called[table.name], is_view=table.row_count is None):
                del called[table.name]
        connection.execute("DETACH source")
    except duckdb.Error as error:
        raise OpenError(f"cannot copy {path}: {str(error).splitlines()[0]}") from error
    return Loaded({called[table.name]: table for table in tables if table.name in called})


def _copied_table(connection: duckdb.DuckDBPyConnection, origin: str, name: str, is_view: bool) -> bool:
    """Whether it could be copied; a table that could not raises duckdb.Error."""
    with Watchdog(VIEW_DEADLINE_S if is_view else threading.TIMEOUT_MAX, connection.interrupt):
        try:
            connection.execute(f"CREATE TABLE {quoted(name)} AS FROM {origin}")
        except duckdb.Error:
            if not is_view:
                raise
            return False
    return True


LOADERS: dict[FileKind, Loader] = {
    "csv": load_csv,
    "excel": load_workbook,
    "json": load_json,
    "parquet": load_parquet,
    "sqlite": load_sqlite,
    "duckdb": load_duckdb,
}


COPIED = TypeAdapter(Copied)


@dataclass(frozen=True, slots=True)
class Loading:
    """What is to be copied where, with how much time, memory and room on disk."""

    files: tuple[tuple[Path, FileKind], ...]
    copy: Path
    optional: tuple[Path, ...]
    deadline_s: float
    memory_mb: int
    disk_mb: int
    choices: Choices = field(default_factory=dict)


def serve(descriptor: int) -> None:
    """Take one `Loading`, answer, and end. The answer is MessagePack: names and notes, or an error's one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole terminal; the owner decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would hold the data
    pipe = Connection(descriptor)
    with ending_with(pipe):
        loading: Loading = pipe.recv()
    Bounds().hold(Limits(deadline_s=loading.deadline_s, memory_limit_mb=loading.memory_mb))
    lower(resource.RLIMIT_FSIZE, loading.disk_mb << 20)
    answer = _answer(loading)
    with ending_with(pipe):
        pipe.send_bytes(answer)
    os._exit(0)  # without the leave-taking of libraries, which would be read on stderr


def _answer(loading: Loading) -> bytes:
    try:
        copied = copy_files(loading.files, loading.copy, loading.optional, loading.memory_mb, loading.choices)
        return ormsgpack.packb(COPIED.dump_python(copied, mode="json"), option=ormsgpack.OPT_REPLACE_SURROGATES)
    except OpenError as error:
        return ormsgpack.packb({"error": str(error)}, option=ormsgpack.OPT_REPLACE_SURROGATES)
    except MemoryError:
        return ormsgpack.packb({"error": ""})
