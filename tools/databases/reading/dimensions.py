"""How large a table a file makes, found before it is loaded: a few bytes can stand for a sheet of billions of cells."""

import csv
import gzip
import re
import zipfile
from pathlib import Path

from tools.result import OpenError

MOST_COLUMNS = 4096
"""No engine of ours takes many more, and no model could read their names."""
MOST_CELLS = 64_000_000
"""Of a sheet, empty ones included: a reader keeps room for each."""
LONGEST_HEADER = 4 << 20  # bytes that are read of a CSV file
_CHUNK, _OVERLAP = 1 << 20, 256
_CELL, _ROW = re.compile(rb'<c [^>]*?\br="([A-Z]{1,3})\d'), re.compile(rb'<row [^>]*?\br="(\d{1,7})"')


def check_columns(path: Path, count: int) -> None:
    """Raise OpenError where a table has more columns than can be loaded."""
    if count > MOST_COLUMNS:
        raise OpenError(f"{path} has {count:,} columns; a table may have {MOST_COLUMNS:,}: keep those that matter")


def check_csv(path: Path) -> None:
    """Raise OpenError where the first line has too many columns, whatever separates them."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            line = file.readline(LONGEST_HEADER)
    except (OSError, EOFError):  # not gzipped, or damaged: the reader says so
        return
    wide = "utf-16" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    text = line.decode(wide, errors="replace")
    if any(text.count(separator) >= MOST_COLUMNS for separator in ",;\t|"):
        check_columns(path, max(_fields(text, separator) for separator in ",;\t|"))


def _fields(line: str, separator: str) -> int:
    csv.field_size_limit(LONGEST_HEADER)
    return len(next(csv.reader([line], delimiter=separator), []))


def check_workbook(path: Path) -> None:
    """Raise OpenError where a sheet of an .xlsx file reaches too far. Other workbooks are left to their reader."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as book:
            for name in book.namelist():
                if re.fullmatch(r"xl/worksheets/[^/]+\.xml", name):
                    _check_sheet(path, *_extent(book, name))
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise OpenError(f"cannot read {path} as an Excel workbook: {error}") from error


def _check_sheet(path: Path, rows: int, columns: int) -> None:
    if rows * columns > MOST_CELLS:
        told = f"a sheet of {path} reaches over {rows:,} rows and {columns:,} columns"
        raise OpenError(f"{told}; delete what is empty in between, or save it as CSV")


def _extent(book: zipfile.ZipFile, name: str) -> tuple[int, int]:
    """Last row and last column that a sheet's cells name, whatever the sheet says of itself."""
    rows, columns, rest = 0, {b"A"}, b""
    with book.open(name) as file:
        while chunk := file.read(_CHUNK):
            text = rest + chunk
            columns |= set(_CELL.findall(text))
            rows = max([rows, *map(int, _ROW.findall(text))])
            rest = text[-_OVERLAP:]
    return max(rows, 1), max(map(_number, columns))


def _number(letters: bytes) -> int:
    """A column's number, from 1: A is 1, AA is 27."""
    number = 0
    for letter in letters:
        number = number * 26 + letter - ord("A") + 1
    return number
