"""Loads files of each kind into DuckDB tables: CSV, JSON, Parquet, workbooks, SQLite.

Puts columns of Python values into a DuckDB table, fast and without pandas or pyarrow.

Each column of a batch travels as one JSON text and is unnested by the engine: 47,000 rows of sakila_1 take 0.12 s on two
cores, where `executemany` needs 5 s for a quarter of them (duckdb 2.0).

Files that DuckDB reads itself, each as one table: CSV, JSON and Parquet.

Of CSV files: where the columns' names stand, what types DuckDB finds, and in what form numbers and dates are written.

Copies every sheet of a workbook into a DuckDB table of its own. The first row that is neither blank nor a title names the
columns.

Copies the tables and views of a SQLite file into DuckDB, with types that its values really have. Needs no extension.

SQLite types values, not columns, so a column's DuckDB type follows the storage classes found in it: integers BIGINT, integers
and reals DOUBLE, texts VARCHAR, blobs BLOB, anything mixed VARCHAR. The declared type decides for a column without values,
and makes DATE or TIMESTAMP of declared dates when every text parses. Keys and comments are handed back as notes: a copy
declares none, for SQLite does not enforce foreign keys and its data may break them.
"""

import datetime
import json
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
from python_calamine import CalamineError, CalamineWorkbook

from tools.databases.duckdb_catalog import quoted
from tools.databases.files.file_kinds import TableNames, distinct, stem
from tools.databases.files.sheets import (
    AS_DETECTED,
    DETECT,
    DETECTED,
    Choices,
    FirstRows,
    Sheet,
    check_columns,
    check_csv,
    check_workbook,
    find_header,
    first_rows,
    sheet_of,
)
from tools.databases.files.written_values import (
    Finding,
    NumberForm,
    adds_up_table,
    convert_text_columns,
    cut_total,
    is_total,
)
from tools.databases.read_only_file import ReadOnlyFile
from tools.processes import Watchdog
from tools.result import OpenError
from tools.schema import Column, ForeignKey, Table, words_of


def create_table(
    connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[str], types: Sequence[str]
) -> None:
    """Create an empty table. Raises duckdb.Error."""
    definitions = ", ".join(f"{quoted(name)} {type_}" for name, type_ in zip(columns, types, strict=True))
    connection.execute(f"CREATE TABLE {quoted(table)} ({definitions})")


def insert_columns(
    connection: duckdb.DuckDBPyConnection, table: str, types: Sequence[str], columns: Sequence[Sequence[Any]]
) -> None:
    """Append rows given as columns of equal length; values are None, numbers, texts, bytes (BLOB only), dates and times."""
    items = ", ".join(_item(position, type_) for position, type_ in enumerate(types, 1))
    texts = [json.dumps(column, default=_text, ensure_ascii=False) for column in columns]
    connection.execute(f"INSERT INTO {quoted(table)} SELECT {items}", texts)


def _item(position: int, type_: str) -> str:
    if type_ == "BLOB":
        return f"unhex(unnest(from_json(${position}, '[\"VARCHAR\"]')))"
    return f"unnest(from_json(${position}, '[\"{type_}\"]'))"


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_CSV_ATTEMPTS = (
    "",
    ", null_padding = true",
    ", sample_size = -1",
    ", sample_size = -1, null_padding = true",
    ", sample_size = -1, encoding = 'latin-1'",
)
"""What is tried in turn: types from a sample or from all rows, short rows filled with NULL, an old Western encoding. `skip`
is fixed, for DuckDB's guess of it drops every row before a ragged one without a word."""

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_JSON_ATTEMPTS = ("", ", sample_size = -1, maximum_object_size = 1073741824")


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
    types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in doubles)
    return f", types = {{{types}}}" if types else ""


def load_json(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """One table from a JSON array of objects or from one object a line. Raises OpenError."""
    _load_by("read_json", _JSON_ATTEMPTS, connection, path, names.take(stem(path)))
    return {}


def load_parquet(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """One table from a Parquet file. Raises OpenError."""
    _load_by("read_parquet", ("",), connection, path, names.take(stem(path)))
    return {}


def _load_by(
    reader: str, attempts: Sequence[str], connection: duckdb.DuckDBPyConnection, path: Path, table: str
) -> None:
    """Make the table anew by the first attempt that reads the file. Raises OpenError."""
    source = literal(_without_wildcards(str(path)))
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


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _without_wildcards(path: str) -> str:
    """DuckDB takes a path for a pattern; in brackets each of its signs means itself."""
    return re.sub(r"([\[*?])", r"[\1]", path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of the engine about this file as OpenError."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise OpenError(f"{path} takes too much memory to load; load a part of it") from error
    except duckdb.Error as error:
        raise OpenError(f"cannot read {path}: {str(error).strip().splitlines()[0]}") from error


BATCH = 8192
EXACT_INTEGER = 2**53


def load_excel(
    connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames, choices: Choices = DETECTED
) -> list[Sheet]:
    """One table per sheet that holds anything; a workbook with one sheet is called by its file. Raises OpenError."""
    check_workbook(path)
    try:
        workbook = CalamineWorkbook.from_path(str(path))
        sheets = {name: workbook.get_sheet_by_name(name).to_python() for name in workbook.sheet_names}
    except (CalamineError, OSError) as error:
        raise OpenError(f"cannot read {path} as an Excel workbook: {error}") from error
    filled = {name: kept for name, rows in sheets.items() if (kept := [row for row in rows if any(map(_given, row))])}
    if not filled:
        raise OpenError(f"{path} has no sheet with anything in it")
    loaded = []
    for name, rows in filled.items():
        table = names.take(stem(path) if len(filled) == 1 else name, f"{stem(path)}_{name}")
        choice = choices.get((path.name, name), AS_DETECTED)
        chosen = choice.header
        header = find_header(rows) if chosen in (DETECT, None) else min(chosen or 0, len(rows) - 1)
        is_named = any(isinstance(cell, str) and cell.strip() for cell in rows[header]) and chosen is not None
        total = [cell for cell in rows[-1] if _given(cell)] if is_total(rows[header + is_named :]) else []
        kept = rows[header:-1] if total and not choice.keeps_total else rows[header:]
        _load_sheet(connection, path, table, kept, is_named)
        found = convert_text_columns(connection, table)
        loaded.append(sheet_of(connection, table, path, name, rows, header, found, total, choice.keeps_total))
    return loaded


def _load_sheet(
    connection: duckdb.DuckDBPyConnection, path: Path, table: str, rows: list[list[Any]], is_named: bool
) -> None:
    """Rows from the one on that names the columns, where one does."""
    header = [_shown(cell) for cell in rows[0]] if is_named else [""] * len(rows[0])
    columns = [list(column) for column in zip(*rows[is_named:], strict=True)] or [[] for _ in header]
    used = [index for index, column in enumerate(columns) if header[index].strip() or any(map(_given, column))]
    columns = [[cell if _given(cell) else None for cell in columns[index]] for index in used]
    check_columns(path, len(used))
    types = [_type(column) for column in columns]
    create_table(connection, table, distinct([header[index] for index in used]), types)
    columns = [_cells(column, type_) for column, type_ in zip(columns, types, strict=True)]
    for start in range(0, len(columns[0]), BATCH):
        insert_columns(connection, table, types, [column[start : start + BATCH] for column in columns])


def _given(cell: object) -> bool:
    return cell is not None and cell != ""


def _shown(cell: object) -> str:
    """A cell as a person sees it: workbooks keep every number as a float."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _type(column: Sequence[Any]) -> str:
    kinds = {type(cell) for cell in column if cell is not None}
    if not kinds:
        return "VARCHAR"
    if kinds <= {int, float}:
        whole = all(cell is None or (float(cell).is_integer() and abs(cell) < EXACT_INTEGER) for cell in column)
        return "BIGINT" if whole else "DOUBLE"
    if kinds == {datetime.date, datetime.datetime}:
        return "TIMESTAMP"
    types = {bool: "BOOLEAN", datetime.date: "DATE", datetime.datetime: "TIMESTAMP", datetime.time: "TIME"}
    return types.get(next(iter(kinds)), "VARCHAR") if len(kinds) == 1 else "VARCHAR"


def _cells(column: list[Any], type_: str) -> list[Any]:
    if type_ == "BIGINT":
        return [None if cell is None else int(cell) for cell in column]
    if type_ == "VARCHAR":
        return [None if cell is None else _shown(cell) for cell in column]
    return column


SQLITE_BATCH, BATCH_WITH_BLOBS = 8192, 64
VIEW_DEADLINE_S = 10.0
_BY_STORAGE = {
    frozenset({"integer"}): "BIGINT",
    frozenset({"real"}): "DOUBLE",
    frozenset({"integer", "real"}): "DOUBLE",
    frozenset({"blob"}): "BLOB",
}
_BY_DECLARED = (
    ("TIMESTAMP", "TIMESTAMP"), ("DATETIME", "TIMESTAMP"), ("DATE", "DATE"), ("INT", "BIGINT"), ("CHAR", "VARCHAR"),
    ("CLOB", "VARCHAR"), ("TEXT", "VARCHAR"), ("REAL", "DOUBLE"), ("FLOA", "DOUBLE"), ("DOUB", "DOUBLE"),
    ("DEC", "DOUBLE"), ("NUM", "DOUBLE"), ("BOOL", "BIGINT"), ("BLOB", "BLOB"),
)  # fmt: skip


def load_sqlite(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """Copy every table; views become tables, and one that fails or takes over 10 s is left out. Returns the notes.

    Raises OpenError when the file cannot be read.
    """
    file = ReadOnlyFile(path)
    try:
        tables = file.schema().tables
        called = {table.name: names.keep(table.name, f"{stem(path)}_{table.name}") for table in tables}
        connection.execute("BEGIN")
        with file.snapshot() as source:
            for table in tables:
                if not _copy(source, connection, file, table, called[table.name]):
                    del called[table.name]
        connection.execute("COMMIT")
    except (sqlite3.Error, duckdb.Error) as error:
        raise OpenError(f"cannot copy {path} into DuckDB: {str(error).splitlines()[0]}") from error
    finally:
        file.close()
    return {called[table.name]: _renamed(table, called) for table in tables if table.name in called}


def _renamed(table: Table, called: dict[str, str]) -> Table:
    keys = (replace(key, ref_table=called[key.ref_table]) for key in table.foreign_keys if key.ref_table in called)
    made_of = table.made_of.union(*(words_of(called[name]) for name in called if words_of(name) <= table.made_of))
    return replace(table, name=called[table.name], foreign_keys=tuple[ForeignKey, ...](keys), made_of=made_of)


def _copy(
    source: sqlite3.Connection, connection: duckdb.DuckDBPyConnection, file: ReadOnlyFile, table: Table, name: str
) -> bool:
    """Whether the table could be copied; one that holds its own rows and could not raises sqlite3.Error."""
    is_stored = table.name not in file.views and table.name not in file.virtual_tables
    deadline_s = threading.TIMEOUT_MAX if is_stored else VIEW_DEADLINE_S
    with Watchdog(deadline_s, source.interrupt):
        try:
            _copy_rows(source, connection, table, name)
        except (sqlite3.OperationalError, sqlite3.DataError):
            if is_stored:
                raise
            connection.execute(f"DROP TABLE IF EXISTS {quoted(name)}")
            return False
    return True


def _copy_rows(source: sqlite3.Connection, connection: duckdb.DuckDBPyConnection, table: Table, name: str) -> None:
    storages = _storages(source, table)
    types = [_sqlite_type(column, storage) for column, storage in zip(table.columns, storages, strict=True)]
    names = distinct([column.name for column in table.columns])
    create_table(connection, name, names, types)
    items = ", ".join(
        f"CAST({quoted(column.name)} AS TEXT)" if type_ == "VARCHAR" else quoted(column.name)
        for column, type_ in zip(table.columns, types, strict=True)
    )
    cursor = source.execute(f"SELECT {items} FROM {quoted(table.name)}")
    while rows := cursor.fetchmany(BATCH_WITH_BLOBS if "BLOB" in types else SQLITE_BATCH):
        insert_columns(connection, name, types, list(zip(*rows, strict=True)))
    for column, storage, copied in zip(table.columns, storages, names, strict=True):
        if storage == {"text"} and _declared(column) in ("DATE", "TIMESTAMP"):
            _read_as_dates(connection, name, copied)


def _storages(source: sqlite3.Connection, table: Table) -> list[frozenset[str]]:
    """The storage classes of each column's values, found in one pass over the table."""
    found = ", ".join(f"group_concat(DISTINCT typeof({quoted(column.name)}))" for column in table.columns)
    row = source.execute(f"SELECT {found} FROM {quoted(table.name)}").fetchone()
    return [frozenset((classes or "").split(",")) - {"null", ""} for classes in row]


def _sqlite_type(column: Column, storage: frozenset[str]) -> str:
    """Dates come in as text, and are read as dates once all of them are there."""
    if storage:
        return _BY_STORAGE.get(storage, "VARCHAR")
    return _declared(column)


def _declared(column: Column) -> str:
    return next((type_ for word, type_ in _BY_DECLARED if word in column.type.upper()), "VARCHAR")


def _read_as_dates(connection: duckdb.DuckDBPyConnection, table: str, column: str) -> None:
    """Make the text column DATE if every text is a date as DATE prints it, else TIMESTAMP if every text is a time."""
    name = quoted(column)
    not_dates = f"CAST(TRY_CAST({name} AS DATE) AS VARCHAR) IS DISTINCT FROM {name}"
    not_times = f"TRY_CAST({name} AS TIMESTAMP) IS NULL AND {name} IS NOT NULL"
    counts = f"SELECT count(*) FILTER ({not_dates}), count(*) FILTER ({not_times}) FROM {quoted(table)}"
    others = connection.execute(counts).fetchone() or (1, 1)
    kind = next((kind for kind, count in zip(("DATE", "TIMESTAMP"), others, strict=True) if not count), None)
    if kind:
        connection.execute(f"ALTER TABLE {quoted(table)} ALTER {name} TYPE {kind}")
