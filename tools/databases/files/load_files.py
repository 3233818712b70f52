"""Copies files of any kind into one private DuckDB file, so that they can be queried under the locks of a read-only database.

DuckDB reads CSV, Parquet and JSON itself; Excel and SQLite have their own modules. The copy lies in a temporary folder of
this user, never beside a source.
"""

import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from tools.databases.duckdb.duckdb_database import Copy, DuckDBDatabase
from tools.databases.duckdb.duckdb_schema import quoted
from tools.databases.files.dimensions import check_csv
from tools.databases.files.file_kinds import FileKind, leave_out, leave_out_total, stem
from tools.databases.files.load_excel import load_excel
from tools.databases.files.load_sqlite import VIEW_DEADLINE_S, load_sqlite
from tools.databases.files.sheets import (
    AS_DETECTED,
    DETECT,
    DETECTED,
    Choices,
    FirstRows,
    Sheet,
    find_header,
    first_rows,
    sheet_of,
)  # fmt: skip
from tools.databases.files.table_names import TableNames
from tools.databases.reading.totals import adds_up_table, cut_total
from tools.databases.reading.written_values import Finding, NumberForm, convert_text_columns
from tools.processes.temporary_folders import new_folder, remove_folder, spill_folder
from tools.processes.watchdog import Watchdog
from tools.result import OpenError
from tools.schema import Table

Loader = Callable[[duckdb.DuckDBPyConnection, Path, TableNames], dict[str, Table]]
SheetLoader = Callable[[duckdb.DuckDBPyConnection, Path, TableNames, Choices], list[Sheet]]

_CSV_ATTEMPTS = (
    "",
    ", null_padding = true",
    ", sample_size = -1",
    ", sample_size = -1, null_padding = true",
    ", sample_size = -1, encoding = 'latin-1'",
)
"""What is tried in turn: types from a sample or from all rows, short rows filled with NULL, an old Western encoding. `skip`
is fixed, for DuckDB's guess of it drops every row before a ragged one without a word."""

_JSON_ATTEMPTS = ("", ", sample_size = -1, maximum_object_size = 1073741824")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


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


def load_csv(
    connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames, choices: Choices = DETECTED
) -> list[Sheet]:
    """One table from CSV, TSV or a gzipped one; rows of titles above the columns' names are left out. Raises OpenError."""
    check_csv(path)
    first, table = first_rows(path), names.take(stem(path))
    choice = choices.get((path.name, ""), AS_DETECTED)
    chosen = choice.header
    header = find_header(first.rows) if chosen in (DETECT, None) else min(chosen or 0, len(first.rows) - 1)
    attempts = [_csv_options(path, first, header, chosen) + attempt for attempt in _csv_attempts(path)]
    decimal = "," if first.separator == ";" else "."
    with _reading(path):
        found, total = _load_rows(connection, path, table, attempts, decimal)
        is_total = bool(total) and adds_up_table(connection, table, found, total)
        if total and (choice.keeps_total or not is_total):
            found, _ = _load_rows(connection, path, table, attempts, decimal, keeps_total=True)
        cells = list(total.values()) if is_total else []
        return [sheet_of(connection, table, path, "", first.rows, header, found, cells, choice.keeps_total)]


def _load_rows(
    connection: duckdb.DuckDBPyConnection, path: Path, table: str, attempts: Sequence[str], decimal: str,
    keeps_total: bool = False,
) -> tuple[tuple[Finding, ...], dict[str, str]]:  # fmt: skip
    """Make the table of a CSV file; what its text columns hold, and the last row if that was taken out as one of totals."""

    def load(attempts: Sequence[str]) -> dict[str, str]:
        _load_by("read_csv", attempts, connection, path, table)
        _drop_blank_rows(connection, table)
        return {} if keeps_total else cut_total(connection, table)

    total = load(attempts)
    found = convert_text_columns(connection, table, decimal)
    if any(each.settles and isinstance(each.form, NumberForm) and each.form.decimal == "," for each in found):
        as_text = _doubles_as_text(connection, table, found)
        total = load([attempt + as_text for attempt in attempts])
        found = convert_text_columns(connection, table, ",")
    return found, total


def _drop_blank_rows(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """Rows whose cells are all empty, which spreadsheets leave behind. Of one column, an empty cell is a value like any."""
    columns = [quoted(each[0]) for each in connection.execute(f"DESCRIBE {quoted(table)}").fetchall()]
    if len(columns) > 1:
        blank = " AND ".join(f"{column} IS NULL" for column in columns)
        connection.execute(f"DELETE FROM {quoted(table)} WHERE {blank}")


def _csv_options(path: Path, first: FirstRows, header: int, chosen: int | None) -> str:
    """How DuckDB reads the file from the row on that names its columns."""
    tabs = path.name.removesuffix(".gz").lower().endswith((".tsv", ".tab"))
    skip = first.lines_before[header] if header > 0 else 0
    named = "" if chosen == DETECT else f", header = {str(chosen is not None).lower()}"
    return f", skip = {skip}{named}" + (", delim = '\t'" if tabs else "")


def _csv_attempts(path: Path) -> Sequence[str]:
    with path.open("rb") as file:
        return (", encoding = 'utf-16'",) if file.read(2) in _UTF_16 else _CSV_ATTEMPTS


def _doubles_as_text(connection: duckdb.DuckDBPyConnection, table: str, found: Sequence[Finding]) -> str:
    """With decimal commas 1.234 is a whole number, which DuckDB takes for a fraction: such columns are read as text first."""
    converted = {each.column for each in found if each.form}
    described = connection.execute(f"DESCRIBE {quoted(table)}").fetchall()
    doubles = [name for name, type_, *_ in described if type_ == "DOUBLE" and name not in converted]
    types = ", ".join(f"{_literal(name)}: 'VARCHAR'" for name in doubles)
    return f", types = {{{types}}}" if types else ""


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of the engine about this file as OpenError."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise OpenError(f"{path} takes too much memory to load; load a part of it") from error
    except duckdb.Error as error:
        raise OpenError(f"cannot read {path}: {str(error).strip().splitlines()[0]}") from error


def load_json(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """One table from a JSON array of objects or from one object a line. Raises OpenError."""
    _load_by("read_json", _JSON_ATTEMPTS, connection, path, names.take(stem(path)))
    return {}


def load_parquet(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """One table from a Parquet file. Raises OpenError."""
    _load_by("read_parquet", ("",), connection, path, names.take(stem(path)))
    return {}


def load_duckdb(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """Every table of a DuckDB file; views become tables, and one that fails or takes over 10 s is left out.

    Raises OpenError.
    """
    original = DuckDBDatabase(path, stem(path))
    tables = original.schema().tables
    original.close()
    called = {table.name: names.keep(table.name.rpartition(".")[2], f"{stem(path)}_{table.name}") for table in tables}
    try:
        connection.execute(f"ATTACH {_literal(str(path))} AS source (READ_ONLY)")
        for table in tables:
            schema, _, bare = table.name.rpartition(".")
            origin = f"source.{quoted(schema or 'main')}.{quoted(bare)}"
            if not _copied_table(connection, origin, called[table.name], is_view=table.row_count is None):
                del called[table.name]
        connection.execute("DETACH source")
    except duckdb.Error as error:
        raise OpenError(f"cannot copy {path}: {str(error).splitlines()[0]}") from error
    return {called[table.name]: table for table in tables if table.name in called}


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


SHEET_LOADERS: dict[FileKind, SheetLoader] = {"csv": load_csv, "excel": load_excel}
LOADERS: dict[FileKind, Loader] = {
    "json": load_json,
    "parquet": load_parquet,
    "sqlite": load_sqlite,
    "duckdb": load_duckdb,
}


def _load_by(
    reader: str, attempts: Sequence[str], connection: duckdb.DuckDBPyConnection, path: Path, table: str
) -> None:
    """Make the table anew by the first attempt that reads the file. Raises OpenError."""
    source = _literal(_without_wildcards(str(path)))
    errors = []
    for options in attempts:
        try:
            connection.execute(f"CREATE OR REPLACE TABLE {quoted(table)} AS FROM {reader}({source}{options})")
        except duckdb.OutOfMemoryException as error:
            raise OpenError(f"{path} takes too much memory to load; load a part of it") from error
        except duckdb.Error as error:
            errors.append(str(error).strip().splitlines()[0])
            continue
        if not _is_unsplit(connection, table):
            return
        errors.append("its rows do not have the same number of columns")
    raise OpenError(f"cannot read {path}: {errors[0]}")


def _is_unsplit(connection: duckdb.DuckDBPyConnection, table: str) -> bool:
    """True when the only column's name still holds separators: DuckDB found no way to split the rows evenly."""
    columns = connection.execute(f"DESCRIBE {quoted(table)}").fetchall()
    return len(columns) == 1 and re.search(r"[,;\t|]", columns[0][0]) is not None


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _without_wildcards(path: str) -> str:
    """DuckDB takes a path for a pattern; in brackets each of its signs means itself."""
    return re.sub(r"([\[*?])", r"[\1]", path)
