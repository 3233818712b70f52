"""Files that DuckDB reads itself, each as one table: CSV, JSON and Parquet.

Of CSV files: where the columns' names stand, what types DuckDB finds, and in what form numbers and dates are written.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from tools.databases.duckdb.duckdb_schema import quoted
from tools.databases.files.file_kinds import stem
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
from tools.databases.reading.dimensions import check_csv
from tools.databases.reading.totals import adds_up_table, cut_total
from tools.databases.reading.written_values import Finding, NumberForm, convert_text_columns
from tools.result import OpenError
from tools.schema import Table

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
