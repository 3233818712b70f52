"""Copies files of any kind into one private DuckDB file, so that they can be queried under the locks of a read-only database.

Each kind of file has its loader (`loaders`). The copy lies in a temporary folder of this user, never beside a source.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from tools.databases.duckdb.duckdb_database import Copy, DuckDBDatabase
from tools.databases.files.file_kinds import FileKind, leave_out, leave_out_total
from tools.databases.files.loaders.by_duckdb import load_json, load_parquet
from tools.databases.files.loaders.load_csv import load_csv
from tools.databases.files.loaders.load_duckdb import load_duckdb
from tools.databases.files.loaders.load_excel import load_excel
from tools.databases.files.loaders.load_sqlite import load_sqlite
from tools.databases.files.sheets import DETECTED, Choices, Sheet
from tools.databases.files.table_names import TableNames
from tools.processes.temporary_folders import new_folder, remove_folder, spill_folder
from tools.result import OpenError
from tools.schema import Table

Loader = Callable[[duckdb.DuckDBPyConnection, Path, TableNames], dict[str, Table]]
SheetLoader = Callable[[duckdb.DuckDBPyConnection, Path, TableNames, Choices], list[Sheet]]

SHEET_LOADERS: dict[FileKind, SheetLoader] = {"csv": load_csv, "excel": load_excel}
LOADERS: dict[FileKind, Loader] = {
    "json": load_json,
    "parquet": load_parquet,
    "sqlite": load_sqlite,
    "duckdb": load_duckdb,
}


@dataclass(frozen=True, slots=True)
class Copied:
    """Tables that were copied, first come first, what their sources said of them (name -> table), the files that could not be
    read, with the reason, and how the tables of CSV files and workbooks were read."""

    names: tuple[str, ...]
    notes: dict[str, Table]
    left_out: tuple[tuple[Path, str], ...] = ()
    sheets: tuple[Sheet, ...] = ()


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
    names, notes, left_out, sheets = TableNames(), dict[str, Table](), list[tuple[Path, str]](), list[Sheet]()
    try:
        with duckdb.connect(str(copy), config=_loading_config(memory_mb)) as connection:
            for file, kind in files:
                try:
                    if kind in SHEET_LOADERS:
                        sheets += SHEET_LOADERS[kind](connection, file, names, choices)
                    else:
                        notes |= LOADERS[kind](connection, file, names)
                except OpenError as error:
                    if file not in optional or len(left_out) + 1 == len(files):
                        raise
                    left_out.append((file, str(error)))
            there = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    except duckdb.Error as error:  # the copy itself: no room for it, most likely
        reason = str(error).strip().splitlines()[0]
        raise OpenError(f"cannot write to {copy.parent}, where temporary files go: {reason}") from error
    return Copied(tuple(name for name in names.in_order if name in there), notes, tuple(left_out), tuple(sheets))


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
        for sheet in copied.sheets:
            if sheet.total and not sheet.keeps_total:
                leave_out_total(sheet.file, sheet.total[0])
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
