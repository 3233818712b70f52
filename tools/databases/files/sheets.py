"""A table of a CSV file or workbook as it stands in the file: its first rows, which of them names the columns, and its size.

The size is found before the table is loaded: a few bytes can stand for a sheet of billions of cells. A loader makes a `Sheet`,
which says what became of every column, for each table that it loads; the page shows it before the table is used.
"""

import csv
import gzip
import io
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import duckdb

from tools.databases.duckdb_catalog import quoted
from tools.databases.files.totals import TableRead
from tools.databases.files.written_values import MISSING
from tools.result import OpenError

MOST_COLUMNS = 4096
"""No engine of ours takes many more, and no model could read their names."""
MOST_CELLS = 64_000_000
MOST_UNPACKED = 512 << 20  # bytes; a reader takes about as much memory
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
    """Raise OpenError where a workbook would unpack to more than 512 MiB, or a sheet of an .xlsx file reaches too far."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as book:
            unpacked = sum(part.file_size for part in book.infolist())
            if unpacked > MOST_UNPACKED:
                raise OpenError(f"{path} would unpack to {unpacked >> 20:,} MiB; save its sheets as CSV")
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
    return max(rows, 1), max(map(column_number, columns))


def column_number(letters: bytes) -> int:
    """A column's number, from 1: A is 1, AA is 27."""
    number = 0
    for letter in letters:
        number = number * 26 + letter - ord("A") + 1
    return number


DETECT = -1


@dataclass(frozen=True, slots=True)
class Choice:
    """How a person wants a sheet to be read. `header`: the place of the row that names its columns among the rows that are not
    blank, from 0; None where no row does, `DETECT` where that is to be found. `keeps_total`: a row of totals stays."""

    header: int | None = DETECT
    keeps_total: bool = False


Choices = Mapping[tuple[str, str], Choice]
"""What a person chose: by a file's name and a sheet's name. A CSV file's sheet has no name."""
AS_DETECTED = Choice()
DETECTED: Choices = MappingProxyType({})

FIRST_ROWS, FIRST_COLUMNS, LONGEST_CELL = 40, 60, 80
READ_ROWS = 5
MOST_WARNINGS = 5  # about columns of one table
_HEAD = 256 << 10  # bytes of a CSV file in which its first rows are looked for


@dataclass(frozen=True, slots=True)
class SheetColumn:
    """`note`: what is worth knowing of how its values were read, or why it is text; may be empty. `warns`: whether everybody
    has to know it."""

    name: str
    type: str
    note: str = ""
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Sheet:
    """`first`: rows of the file that are not blank; `header`: the place of the one that names the columns, None where none
    does. `rows`: the first ones of the table, as text. `total`: the cells of a row of totals at the end; empty without one;
    `keeps_total`: whether it is a row of the table all the same. `told`: what else a person should know of how it was
    read. Cells are cut to 80 characters."""

    file: str
    name: str
    table: str
    first: tuple[tuple[str, ...], ...]
    header: int | None
    columns: tuple[SheetColumn, ...]
    rows: tuple[tuple[str, ...], ...]
    row_count: int
    total: tuple[str, ...] = ()
    keeps_total: bool = False
    told: tuple[str, ...] = ()

    def warnings(self) -> tuple[str, ...]:
        """What a person should know who does not see how the table was read."""
        where = f"{self.file} ({self.name})" if self.name else self.file
        lines = [f"{where}: {told}" for told in self.told]
        if self.total and not self.keeps_total:
            what = f"the last row of {self.file}, “{self.total[0]}”, adds up those above it, and is left out"
            lines.append(f"{what}; `sqlagent ui` can keep it")
        doubtful = [column for column in self.columns if column.warns]
        lines += [f"{where}: column “{column.name}” is {column.note}" for column in doubtful[:MOST_WARNINGS]]
        if len(doubtful) > MOST_WARNINGS:
            lines.append(f"{where}: so are {len(doubtful) - MOST_WARNINGS} columns more; `sqlagent ui` shows them")
        return tuple(lines)


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Rows of a CSV file that are not blank, and how many rows stand before each, blank ones included: a row that is written
    over several lines is one to DuckDB, too, when it skips some."""

    rows: list[list[str]]
    rows_before: list[int]
    separator: str


def find_header(rows: Sequence[Sequence[Any]]) -> int:
    """The place of the row that names the columns, or of the first row of data: titles above it fill fewer cells.

    >>> find_header([["Sales 2023", ""], ["item", "price"], ["pen", "3"]])
    1
    >>> find_header([["item", "price", "sold"], ["pen", "3", ""]])
    0
    """
    widths = [sum(map(_filled, row)) for row in rows[:FIRST_ROWS]]
    typical = sorted(widths)[3 * len(widths) // 4] if widths else 0
    full = next((place for place, width in enumerate(widths) if width >= max(2, 0.75 * typical)), 0)
    if full == 0:
        return 0
    is_narrow = all(2 * width < typical for width in widths[:full])
    return full if is_narrow or _names_numbers(rows[full], rows[full + 1 : FIRST_ROWS]) else 0


@dataclass(frozen=True, slots=True)
class Headings:
    """The names of a table's columns, without line ends; empty where its file names none. `header`: the place of the first row
    that names them, `data` that of the first row of values."""

    names: tuple[str, ...]
    header: int
    data: int


def find_headings(rows: Sequence[Sequence[Any]], spans: Collection[tuple[int, int, int]] = ()) -> Headings:
    """Where the names stand, which may take two rows: groups over columns, or units below them. `spans`: the cells that a
    workbook has merged, as row, first and last column.

    >>> find_headings([["town", "2023", ""], ["", "Q1", "Q2"], ["Bern", 1, 2], ["Chur", 3, 4]]).names
    ('town', '2023 Q1', '2023 Q2')
    """
    header = find_header(rows)
    if header and _groups(rows[header - 1], rows[header], header - 1, spans):
        return Headings(_joined(rows[header - 1], rows[header], header - 1, spans), header - 1, header + 1)
    if _is_second_header(rows, header, spans):
        return Headings(_joined(rows[header], rows[header + 1], header, spans), header, header + 2)
    return headings_at(rows, header)


def headings_at(rows: Sequence[Sequence[Any]], header: int) -> Headings:
    """With the names in one row, that a person chose or that was found."""
    return Headings(tuple(map(one_line, rows[header])) if header < len(rows) else (), header, header + 1)


def one_line(cell: object) -> str:
    """A cell as a name: what a line break parts in a narrow column is one name.

    >>> one_line("Net amount\\n(EUR)")
    'Net amount (EUR)'
    """
    whole = isinstance(cell, float) and cell.is_integer()
    return " ".join(str(int(cell) if whole else cell).split()) if _filled(cell) else ""  # type: ignore[call-overload]


def _groups(upper: Sequence[Any], lower: Sequence[Any], row: int, spans: Collection[tuple[int, int, int]]) -> bool:
    """Whether the upper of two rows names groups of the columns that the lower names."""
    if any(map(_is_value, upper)) or sum(map(_filled, upper)) < 1:
        return False
    wide = [last for at, first, last in spans if at == row and last > first and _filled(_at(upper, first))]
    if wide and len(set(map(one_line, lower))) > 1 and len(wide) < len(lower):
        return sum(map(_filled, upper)) > 1 or not all(map(_filled, lower))
    group = _spread(upper, row, spans)
    names = [one_line(cell) for cell in lower if _filled(cell)]
    widths = [group.count(name) for name in dict.fromkeys(group) if name]
    alone = [column for column, name in enumerate(group) if name and group.count(name) == 1]
    repeats = len(set(names)) < len(names)
    return sum(width > 1 for width in widths) > (0 if repeats else 1) or (
        any(width > 1 for width in widths)
        and all(not _filled(_at(lower, column)) for column in alone)
        and len(widths) > 1
    )


def _spread(upper: Sequence[Any], row: int, spans: Collection[tuple[int, int, int]]) -> list[str]:
    """The group of each column: a cell stands for the empty ones after it, as far as it is merged where that is known."""
    merged = {first: last for at, first, last in spans if at == row}
    group, until = [""] * len(upper), len(upper)
    for column, cell in enumerate(upper):
        if _filled(cell):
            group[column] = one_line(cell)
            until = merged.get(column, column if merged else len(upper))
        elif column and column <= until:
            group[column] = group[column - 1]
    return group


def _is_second_header(rows: Sequence[Sequence[Any]], header: int, spans: Collection[tuple[int, int, int]]) -> bool:
    """Whether the row below the first that names columns says more of them: parts of a group, or units."""
    if header + 2 >= len(rows):
        return False
    upper, lower, below = rows[header], rows[header + 1], rows[header + 2 : header + 2 + FIRST_ROWS]
    if any(map(_is_value, upper)):
        return False
    measured = [column for column in range(len(lower)) if _holds_values(below, column)]
    names = [_at(lower, column) for column in measured if _filled(_at(lower, column))]
    others = [_at(lower, column) for column in range(len(lower)) if column not in measured]
    others_blank = not any(map(_filled, others)) and len(lower) > 1  # of one column, a word is a value like any
    are_words = len(names) >= (1 if others_blank else 2) and not any(
        _is_value(name) or _is_nothing(name) for name in names
    )
    if not are_words or len(names) < len([column for column in measured if not _filled(_at(upper, column))]):
        return False
    has_groups = not all(map(_filled, upper[: len(lower)])) or len(set(map(one_line, upper))) < len(upper)
    return others_blank if not has_groups else True


def _joined(
    upper: Sequence[Any], lower: Sequence[Any], row: int, spans: Collection[tuple[int, int, int]]
) -> tuple[str, ...]:
    columns = range(max(len(upper), len(lower)))
    group = _spread([*upper, *[None] * (len(columns) - len(upper))], row, spans)
    below = [one_line(_at(lower, column)) for column in columns]
    return tuple(
        " ".join(
            dict.fromkeys(
                part
                for part in (group[column] if below[column] else one_line(_at(upper, column)), below[column])
                if part
            )
        )
        for column in columns
    )


def _at(row: Sequence[Any], column: int) -> Any:
    return row[column] if column < len(row) else None


def _holds_values(rows: Sequence[Sequence[Any]], column: int) -> bool:
    cells = [row[column] for row in rows if column < len(row) and _filled(row[column]) and not _is_nothing(row[column])]
    return bool(cells) and all(map(_is_number, cells))


def _is_value(cell: object) -> bool:
    """Whether a cell is a number or a date, and no year, which may name a column."""
    return _filled(cell) and _is_number(cell) and re.fullmatch(r"(?:19|20)\d\d", one_line(cell)) is None


def _is_nothing(cell: object) -> bool:
    return str(cell).strip().lower() in MISSING


def _names_numbers(row: Sequence[Any], below: Iterable[Sequence[Any]]) -> bool:
    """Whether a row of words stands above numbers."""
    return not any(map(_is_number, row)) and any(_is_number(cell) for each in below for cell in each)


def _filled(cell: object) -> bool:
    return cell is not None and str(cell).strip() != ""


def _is_number(cell: object) -> bool:
    return any(sign.isdigit() for sign in str(cell)) and not any(sign.isalpha() for sign in str(cell))


def first_rows(path: Path) -> FirstRows:
    """Of a CSV file; the separator is the one that splits most rows alike. Damaged files have none: their reader says so."""
    lines = _head(path).splitlines(keepends=True)
    return max((_split(lines, separator) for separator in ",;\t|"), key=_evenness)


def _head(path: Path) -> str:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, EOFError):
        return ""
    if len(head) == _HEAD:
        head = head[: head.rfind(b"\n") + 1]
    return head.decode("utf-8-sig", errors="replace")


def _split(lines: Sequence[str], separator: str) -> FirstRows:
    reader = csv.reader(io.StringIO("".join(lines), newline=""), delimiter=separator)
    found, before = list[list[str]](), list[int]()
    try:
        for place, row in enumerate(reader):
            if any(map(_filled, row)):
                found.append(row)
                before.append(place)
            if len(found) == FIRST_ROWS:
                break
    except csv.Error:  # a cell that is too long, say
        pass
    return FirstRows(found, before, separator)


def _evenness(first: FirstRows) -> tuple[int, int]:
    """How many rows have the most common number of cells, if that is more than one; and that number."""
    widths = [len(row) for row in first.rows if len(row) > 1]
    common = max(widths, key=widths.count, default=0)
    return widths.count(common), common


def sheet_of(
    connection: duckdb.DuckDBPyConnection, table: str, path: Path, name: str, first: Sequence[Sequence[Any]],
    header: int | None, read: TableRead, keeps_total: bool = False, told: Sequence[str] = (),
) -> Sheet:  # fmt: skip
    """A loaded table as it is shown. `header`: the place of the row that names its columns. Raises duckdb.Error."""
    notes = {each.column: each for each in read.found}
    described = connection.execute(f"DESCRIBE {quoted(table)}").fetchall()
    columns = tuple(
        SheetColumn(each[0], each[1], *((notes[each[0]].note, notes[each[0]].warns) if each[0] in notes else ()))
        for each in described[:FIRST_COLUMNS]
    )
    listed = ", ".join(f"CAST({quoted(column.name)} AS VARCHAR)" for column in columns)
    rows = connection.execute(f"SELECT {listed} FROM {quoted(table)} LIMIT {READ_ROWS}").fetchall()
    (count,) = connection.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone() or (0,)
    cells = tuple(map(_text, read.total[:FIRST_COLUMNS]))
    said = (*told, *read.told)
    return Sheet(path.name, name, table, _texts(first), header, columns, _texts(rows), count, cells, keeps_total, said)


def _texts(rows: Sequence[Sequence[Any]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(_text, row[:FIRST_COLUMNS])) for row in rows[:FIRST_ROWS])


def _text(cell: object) -> str:
    whole = isinstance(cell, float) and cell.is_integer()
    return "" if cell is None else str(int(cell) if whole else cell).strip()[:LONGEST_CELL]  # type: ignore[call-overload]
