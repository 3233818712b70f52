"""Opens files and folders of files with DuckDB."""

from collections.abc import Collection, Sequence
from pathlib import Path

from tools.databases.duckdb_database import DuckDBDatabase
from tools.databases.files.file_kinds import (
    FileKind,
    files_of,
    is_url,
    name_of,
    names_a_file,
    path_of,
)
from tools.databases.files.load_files import Copied, Copier, copy_files, load_files
from tools.databases.files.sheets import DETECTED, Choices, Sheet
from tools.result import OpenError


def open_files_apart(sources: Sequence[str]) -> DuckDBDatabase:
    """As `open_files`, with the files copied by a process of their own, which is bounded and can be killed."""
    from tools.databases.isolated_database import copy_apart

    return open_files(sources, copy_apart)


def copy_apart_all(sources: Sequence[str], choices: Choices = DETECTED) -> tuple[DuckDBDatabase, tuple[Sheet, ...]]:
    """As `open_files_apart`, with DuckDB files copied too, so that nothing of a stranger's file is read in this process; and
    how the tables of CSV files and workbooks were read."""
    from tools.databases.isolated_database import copy_apart

    sheets: tuple[Sheet, ...] = ()

    def copy(files: Sequence[tuple[Path, FileKind]], to: Path, optional: Collection[Path] = ()) -> Copied:
        nonlocal sheets
        copied = copy_apart(files, to, optional, choices)
        sheets = copied.sheets
        return copied

    return open_files(sources, copy, as_it_is=False), sheets


def open_files(sources: Sequence[str], copy: Copier = copy_files, as_it_is: bool = True) -> DuckDBDatabase:
    """A DuckDB file as it is, all others copied into a private one; files of a folder that cannot be read are left out with a
    `LeftOut` warning. Raises OpenError."""
    if is_url(sources[0]) and not names_a_file(sources[0]):
        raise OpenError("the duckdb engine opens files; open a URL with engine auto")
    files, name = files_of(sources), name_of(sources)
    path, kind = files[0]
    if as_it_is and len(files) == 1 and kind == "duckdb":
        return DuckDBDatabase(path, name)
    named = {path_of(source).expanduser() for source in sources}
    return load_files(files, name, copy, [file for file, _ in files if file not in named])
