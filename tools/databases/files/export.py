"""A result as a file that other programs read: CSV, Parquet or an Excel workbook.

A spreadsheet computes a text that begins like a formula, and whoever filled the database may have written one. In CSV such a
text gets an apostrophe before it, in a workbook it is marked as text; numbers stay as they are.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import duckdb

from tools.databases.duckdb_catalog import quoted
from tools.result import Result

Format = Literal["csv", "parquet", "xlsx"]
EXCEL_ROWS = 1_048_575  # below the header
EXCEL_CELL = 32_767  # characters
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
    _write_csv(path, (map(inert, row) for row in (result.columns, *result.rows)))


def inert(cell: Any) -> Any:
    """The cell, with an apostrophe where a spreadsheet might compute it."""
    return f"'{cell}" if is_formula(cell) else cell


def _write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def _parquet(result: Result, path: Path) -> None:
    """DuckDB writes it, from a CSV beside it: its own types are kept, other engines' are guessed from the text."""
    beside = path.with_suffix(".csv.part")
    names = _unique(result.columns)
    try:
        _write_csv(beside, (result.columns, *result.rows))
        with duckdb.connect() as connection:
            for types in (dict(zip(names, result.types, strict=True)), None, dict.fromkeys(names, "VARCHAR")):
                if _copied(connection, beside, path, names, types):
                    return
        raise ExportError("these rows cannot be written as Parquet; export CSV instead")
    finally:
        beside.unlink(missing_ok=True)


def _copied(
    connection: duckdb.DuckDBPyConnection, source: Path, path: Path, names: list[str], types: dict[str, str] | None
) -> bool:
    wanted = (
        f"names = [{', '.join(map(_text, names))}]"
        if types is None
        else f"columns = {{{', '.join(f'{_text(name)}: {_text(kind)}' for name, kind in types.items())}}}"
    )
    read = f"read_csv({_text(str(source))}, header = true, quote = '\"', escape = '\"', delim = ',', {wanted})"
    listed = ", ".join(map(quoted, names))
    try:
        connection.execute(f"COPY (SELECT {listed} FROM {read}) TO {_text(str(path))} (FORMAT parquet)")
    except duckdb.Error:
        return False
    return True


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
    if cell is None or isinstance(cell, bool | Decimal):
        return cell
    if isinstance(cell, int | float):
        return cell if abs(cell) < 1e15 else str(cell)  # also where it is not a number or infinite
    if isinstance(cell, datetime):
        return cell.replace(tzinfo=None) if cell.year >= 1900 else str(cell)
    if isinstance(cell, date):
        return cell if cell.year >= 1900 else str(cell)
    return str(cell)[:EXCEL_CELL]


def _unique(names: Iterable[str]) -> list[str]:
    """Names that differ, also where case is ignored."""
    seen: set[str] = set()
    out: list[str] = []
    for name in names:
        fresh, number = name or "column", 1
        while fresh.casefold() in seen:
            number += 1
            fresh = f"{name}_{number}"
        seen.add(fresh.casefold())
        out.append(fresh)
    return out


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


_WRITERS: Mapping[Format, Callable[[Result, Path], None]] = {"csv": _csv, "parquet": _parquet, "xlsx": _xlsx}
FORMATS: Sequence[Format] = tuple(_WRITERS)
