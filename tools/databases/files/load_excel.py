"""Copies every sheet of a workbook into a DuckDB table of its own. The first row that is neither blank nor a title names the
columns.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
from python_calamine import CalamineError, CalamineWorkbook

from tools.databases.files.file_kinds import stem
from tools.databases.files.insert_columns import create_table, insert_columns
from tools.databases.files.sheets import AS_DETECTED, DETECT, DETECTED, Choices, Sheet, find_header, sheet_of
from tools.databases.files.table_names import TableNames, distinct
from tools.databases.reading.dimensions import check_columns, check_workbook
from tools.databases.reading.totals import is_total
from tools.databases.reading.written_values import convert_text_columns
from tools.result import OpenError

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
