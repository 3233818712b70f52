"""A result as a file that other programs read: CSV, Parquet or an Excel workbook.

A spreadsheet computes a text that begins like a formula, and the author of the data may have written one. In CSV such a
text gets an apostrophe before it, in a workbook it is marked as text; numbers stay as they are.
"""

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import duckdb

from tools.databases.duckdb_catalog import create_table, insert_columns, literal
from tools.databases.files.file_kinds import distinct
from tools.result import Result

Format = Literal["csv", "parquet", "xlsx"]
EXCEL_ROWS = 1_048_575  # below the header
EXCEL_CELL = 32_767  # characters
EXCEL_DIGITS = 15  # of a number
_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class ExportError(ValueError):
    """The result does not fit into the format; the message says what to do."""


def export(result: Result, path: Path, kind: Format, most_bytes: int | None = None) -> None:
    """Write every row of `result` to `path`. Raises ExportError, also where its cells are more than `most_bytes` of text;
    then there is no file."""
    rows = result.rows if most_bytes is None else _bounded(result.rows, most_bytes)
    try:
        _WRITERS[kind](replace(result, rows=rows), path)
    except ExportError:
        path.unlink(missing_ok=True)
        raise


def _bounded(rows: Sequence[tuple[Any, ...]], most_bytes: int) -> tuple[tuple[Any, ...], ...]:
    """The rows, if their cells spelt out take no more."""
    left = most_bytes
    for row in rows:
        left -= sum(len(cell) if isinstance(cell, str | bytes) else len(str(cell)) for cell in row)
        if left < 0:
            most_mb = most_bytes / 2**20
            raise ExportError(f"these rows take more than the {most_mb:.1f} MiB left for exports; select fewer of them")
    return tuple(rows)


def is_formula(cell: object) -> bool:
    """Whether a spreadsheet might compute this text: it begins like a formula and is no number."""
    return isinstance(cell, str) and _FORMULA.match(cell) is not None and _NUMBER.fullmatch(cell) is None


def _csv(result: Result, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(map(inert, row) for row in (result.columns, *result.rows))


def inert(cell: Any) -> Any:
    """The cell as a file of texts has it, with an apostrophe where a spreadsheet might compute it."""
    text = spelt(cell)
    return f"'{text}" if is_formula(text) else text


def spelt(cell: Any) -> Any:
    """What is not a number, a text or a time as other programs read it, not as Python writes it: bytes in hexadecimal digits,
    spans of time in hours, lists and records as JSON.

    >>> spelt(b"\\xaa"), spelt(timedelta(days=1, hours=6)), spelt([1, None])
    ('aa', '30:00:00', '[1, null]')
    """
    if isinstance(cell, bytes | bytearray | memoryview):
        return bytes(cell).hex()
    if isinstance(cell, timedelta):
        seconds = abs(cell) // timedelta(seconds=1)
        part = f".{abs(cell).microseconds:06}".rstrip("0") if cell.microseconds else ""
        return f"{'-' if cell < timedelta() else ''}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}{part}"
    return json.dumps(cell, default=_in_json, ensure_ascii=False) if isinstance(cell, list | tuple | dict) else cell


def _in_json(cell: Any) -> str:
    return str(spelt(cell))


_DIGITS = 38  # of the longest number that Parquet keeps exactly
_INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_BY_KIND: Mapping[type, str] = {
    bool: "BOOLEAN", float: "DOUBLE", bytes: "BLOB", date: "DATE", time: "TIME", timedelta: "INTERVAL", str: "VARCHAR",
}  # fmt: skip


def _parquet(result: Result, path: Path) -> None:
    """DuckDB writes it. The types are its own where they keep every value; other engines' are those of the values."""
    names = distinct(list(result.columns))
    columns = [[row[place] for row in result.rows] for place in range(len(names))]
    types = [_parquet_type(type_, cells) for type_, cells in zip(result.types, columns, strict=True)]
    with duckdb.connect() as connection:
        for tried in (types, ["VARCHAR"] * len(names)):
            try:
                create_table(connection, "result", names, tried)
                for start in range(0, len(result.rows), _BATCH):
                    batch = [
                        [_carried(cell, type_) for cell in cells[start : start + _BATCH]]
                        for cells, type_ in zip(columns, tried, strict=True)
                    ]
                    insert_columns(connection, "result", tried, batch)
                connection.execute(f"COPY result TO {literal(str(path))} (FORMAT parquet)")
                return
            except duckdb.Error:
                connection.execute("DROP TABLE IF EXISTS result")
    raise ExportError("these rows cannot be written as Parquet; export CSV instead")


_BATCH = 8192


def _parquet_type(declared: str, cells: Sequence[Any]) -> str:
    """A type in which every cell keeps its value: Parquet has no integers of more than 64 bits, but decimals of 38 digits."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if not kinds:
        return declared if declared in (*_INTEGER_TYPES, *_BY_KIND.values(), "FLOAT", "TIMESTAMP") else "VARCHAR"
    if kinds == {int} and declared in _INTEGER_TYPES:
        return declared
    if kinds <= {int, Decimal}:
        return _decimal_type(declared, [cell for cell in cells if cell is not None])
    if kinds <= {int, float}:
        return "FLOAT" if declared == "FLOAT" else "DOUBLE"
    if kinds == {datetime}:
        return "TIMESTAMP" if all(cell is None or cell.tzinfo is None for cell in cells) else "TIMESTAMPTZ"
    if kinds <= {list, tuple, dict}:
        return declared if declared.endswith(("]", ")")) else "VARCHAR"
    return _BY_KIND.get(next(iter(kinds)), "VARCHAR") if len(kinds) == 1 else "VARCHAR"


def _decimal_type(declared: str, cells: Sequence[int | Decimal]) -> str:
    if re.fullmatch(r"DECIMAL\(\d+,\s*\d+\)", declared):
        return declared
    if any(isinstance(cell, Decimal) and not cell.is_finite() for cell in cells):
        return "VARCHAR"
    after = max(max(0, -int(Decimal(cell).as_tuple().exponent)) for cell in cells)
    before = max(len(str(abs(int(cell)))) for cell in cells)
    if not after and before <= 18 and declared != "HUGEINT":
        return "BIGINT"
    return f"DECIMAL({_DIGITS}, {after})" if before + after <= _DIGITS else "VARCHAR"


def _carried(cell: Any, type_: str) -> Any:
    """A cell on its way into a column of this type."""
    if cell is None or type_ == "BLOB":
        return cell
    if isinstance(cell, timedelta) and type_ == "INTERVAL":
        return f"{cell // timedelta(microseconds=1)} microseconds"
    if isinstance(cell, list | tuple | dict) and type_ != "VARCHAR":
        return cell
    return cell if isinstance(cell, bool | int) else str(spelt(cell))


def _xlsx(result: Result, path: Path) -> None:
    import xlsxwriter  # only who exports a workbook needs it

    if len(result.rows) > EXCEL_ROWS:
        raise ExportError(
            f"an Excel sheet holds {EXCEL_ROWS:,} rows, and this result has {len(result.rows):,}; export CSV instead"
        )
    options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    with xlsxwriter.Workbook(str(path), options | {"default_date_format": "yyyy-mm-dd hh:mm:ss"}) as book:
        sheet, bold = book.add_worksheet("result"), book.add_format({"bold": True, "quote_prefix": True})
        text = book.add_format({"quote_prefix": True})
        sheet.write_row(0, 0, result.columns, bold)
        for number, row in enumerate(result.rows, 1):
            for column, cell in enumerate(row):
                sheet.write(number, column, _excel_cell(cell), text if is_formula(cell) else None)
        sheet.freeze_panes(1, 0)


def _excel_cell(cell: Any) -> Any:
    if isinstance(cell, Decimal):
        return cell if len(cell.as_tuple().digits) <= EXCEL_DIGITS else str(cell)
    if cell is None or isinstance(cell, bool):
        return cell
    if isinstance(cell, int | float):
        return cell if abs(cell) < 1e15 else str(cell)  # also where it is not a number or infinite
    if isinstance(cell, datetime):
        return cell.replace(tzinfo=None) if cell.year >= 1900 else str(cell)
    if isinstance(cell, date):
        return cell if cell.year >= 1900 else str(cell)
    return str(spelt(cell))[:EXCEL_CELL]


_WRITERS: Mapping[Format, Callable[[Result, Path], None]] = {"csv": _csv, "parquet": _parquet, "xlsx": _xlsx}
FORMATS: Sequence[Format] = tuple(_WRITERS)
