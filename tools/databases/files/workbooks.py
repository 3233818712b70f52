"""Copies the tables of a workbook into DuckDB: one or more on each sheet, with the values that a person sees there.

A sheet may hold several tables, one below or next to another, with names of their own. Numbers that a format fills with zeros
are codes and stay text, and formulas whose values the file lacks are told, for they are empty cells to a reader.
"""

import datetime
import re
import zipfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
from python_calamine import CalamineError, CalamineWorkbook

from tools.databases.duckdb_catalog import create_table, insert_columns, quoted
from tools.databases.files.file_kinds import TableNames, distinct, stem
from tools.databases.files.sheets import (
    AS_DETECTED,
    DETECT,
    Choice,
    Choices,
    Headings,
    Sheet,
    check_columns,
    check_workbook,
    column_number,
    find_headings,
    headings_at,
    one_line,
    sheet_of,
)
from tools.databases.files.totals import make_table
from tools.result import OpenError

BATCH = 8192
EXACT_INTEGER = 2**53
Rows = list[list[Any]]


@dataclass(frozen=True, slots=True)
class _Cells:
    """What a sheet's file says of cells that their values do not: by column from 0, runs of rows. `codes` with their format."""

    codes: Mapping[int, list[tuple[int, str]]] = field(default_factory=dict)
    uncomputed: Mapping[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Block:
    """A table on a sheet: its rows that are not blank, the place of each on the sheet, and that of its first column."""

    rows: Rows
    places: list[int]
    left: int = 0


def load_excel(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames, choices: Choices) -> list[Sheet]:
    """A table for each that a sheet holds; a workbook with one is called by its file. Raises OpenError."""
    check_workbook(path)
    try:
        workbook = CalamineWorkbook.from_path(str(path))
        sheets = {name: workbook.get_sheet_by_name(name) for name in workbook.sheet_names}
        rows = {name: sheet.to_python(skip_empty_area=False) for name, sheet in sheets.items()}
        merged = {name: _spans(sheet.merged_cell_ranges or ()) for name, sheet in sheets.items()}
    except (CalamineError, OSError) as error:
        raise OpenError(f"cannot read {path} as an Excel workbook: {error}") from error
    blocks = {name: found for name, each in rows.items() if (found := _blocks(each))}
    if not blocks:
        raise OpenError(f"{path} has no sheet with anything in it")
    cells = _cells_of(path)
    loaded = []
    for name, found in blocks.items():
        for number, block in enumerate(found, 1):
            called = name if number == 1 else f"{name} ({number})"
            table = names.take(stem(path) if len(blocks) == 1 else name, f"{stem(path)}_{name}")
            told = [f"the sheet holds {len(found)} tables; this is “{table}”"] if len(found) > 1 else []
            choice = choices.get((path.name, called), AS_DETECTED)
            known = cells.get(name, _Cells())
            loaded.append(_load_block(connection, path, called, table, block, merged[name], known, choice, told))
    return loaded


def _spans(ranges: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> list[tuple[int, int, int]]:
    """Cells that are merged across columns, as row, first and last column."""
    return [(first[0], first[1], last[1]) for first, last in ranges if last[1] > first[1]]


def _load_block(
    connection: duckdb.DuckDBPyConnection, path: Path, name: str, table: str, block: _Block,
    merged: Sequence[tuple[int, int, int]], cells: _Cells, choice: Choice, told: list[str],
) -> Sheet:  # fmt: skip
    rows, named = block.rows, choice.header is not None
    headings = _headings(block, merged, choice)
    names = list(headings.names) + [""] * (len(rows[0]) - len(headings.names))
    start = headings.data if named else headings.header
    columns = [list(column) for column in zip(*rows[start:], strict=True)] or [[] for _ in names]
    used = [index for index, column in enumerate(columns) if names[index] or any(map(_given, column))]
    check_columns(path, len(used))
    called = distinct([names[index] if named else "" for index in used])
    columns = [
        _as_codes(columns[index], cells.codes.get(block.left + index, ()), block.places[start:]) for index in used
    ]
    told += _uncomputed(called, [cells.uncomputed.get(block.left + index, ()) for index in used], block.places[start:])
    signs = [_decimal_sign(column) for column in columns]
    raw = f"{table} as text"
    create_table(connection, raw, called, ["VARCHAR"] * len(called))
    for first in range(0, len(columns[0]), BATCH):
        texts = [
            [_text(cell, sign) for cell in column[first : first + BATCH]]
            for column, sign in zip(columns, signs, strict=True)
        ]
        insert_columns(connection, raw, ["VARCHAR"] * len(called), texts)

    def known(left_out: Collection[int]) -> dict[str, str]:
        types = {each: _type(column, left_out) for each, column in zip(called, columns, strict=True)}
        return {each: type_ for each, type_ in types.items() if type_ != "VARCHAR"}

    read = make_table(connection, raw, table, keeps_total=choice.keeps_total, known=known)
    connection.execute(f"DROP TABLE {quoted(raw)}")
    header = headings.header if named and any(headings.names) else None
    return sheet_of(connection, table, path, name, rows, header, read, choice.keeps_total, told)


def _headings(block: _Block, merged: Sequence[tuple[int, int, int]], choice: Choice) -> Headings:
    if choice.header in (DETECT, None):
        places = {place: index for index, place in enumerate(block.places)}
        spans = [(places[row], first - block.left, last - block.left) for row, first, last in merged if row in places]
        found = find_headings(block.rows, spans)
    else:
        found = headings_at(block.rows, min(choice.header or 0, len(block.rows) - 1))
    has_words = any(isinstance(cell, str) and cell.strip() for cell in block.rows[found.header])
    return found if has_words else Headings((), found.header, found.header)


def _blocks(rows: Rows) -> list[_Block]:
    """The tables of a sheet. A blank row ends a table only where names of another follow."""
    tables: list[_Block] = []
    pending = _Block([], [])
    for block in _parted(rows):
        if tables and not pending.rows and not _begins_table(block, tables[-1]):
            if len(block.rows) == 1 and _filled(block.rows[0]) == 1 and not any(map(_is_number, block.rows[0])):
                pending = block  # a title of what follows, or a note
            else:
                tables[-1] = _Block(tables[-1].rows + block.rows, tables[-1].places + block.places)
            continue
        whole = _Block(pending.rows + block.rows, pending.places + block.places)
        if tables and not _begins_table(block, tables[-1]):
            tables[-1] = _Block(tables[-1].rows + whole.rows, tables[-1].places + whole.places)
            pending = _Block([], [])
        elif tables or _begins_table(block, None):
            tables.append(whole)
            pending = _Block([], [])
        else:
            pending = whole
    if pending.rows:
        if tables:
            tables[-1] = _Block(tables[-1].rows + pending.rows, tables[-1].places + pending.places)
        else:
            tables.append(pending)
    return [side for table in tables for side in _sides(table)]


def _parted(rows: Rows) -> list[_Block]:
    """Rows between blank ones."""
    blocks, before = list[_Block](), -2
    for place, row in enumerate(rows):
        if any(map(_given, row)):
            if place != before + 1:
                blocks.append(_Block([], []))
            blocks[-1].rows.append(row)
            blocks[-1].places.append(place)
            before = place
    return blocks


def _begins_table(block: _Block, before: _Block | None) -> bool:
    """Whether a block has names of its own, above values that differ from names."""
    headings = find_headings(block.rows)
    names, below = block.rows[headings.data - 1], block.rows[headings.data :]
    if not below or _filled(names) < 2 or any(map(_is_number, names)):
        return False
    if not all(isinstance(cell, str) for cell in names if _given(cell)):
        return False
    measured = [at for at in range(len(names)) if any(_is_number(row[at]) for row in below)]
    if before is None:
        return len(below) > 1 and any(_given(names[at]) for at in measured)
    if [one_line(cell) for cell in names] == [
        one_line(cell) for cell in before.rows[find_headings(before.rows).data - 1]
    ]:
        return False
    old = find_headings(before.rows)
    held = [at for at in range(len(names)) if any(_is_number(row[at]) for row in before.rows[old.data :])]
    return any(_given(names[at]) and not _is_number(names[at]) for at in [*held, *measured]) or _extent(
        block
    ) != _extent(before)


def _extent(block: _Block) -> list[int]:
    return [at for at in range(len(block.rows[0])) if any(_given(row[at]) for row in block.rows)]


def _sides(block: _Block) -> list[_Block]:
    """Tables that stand side by side, with empty columns between: those whose rows end elsewhere, or whose names repeat."""
    headings = find_headings(block.rows)
    rows = block.rows[headings.header :]
    used = [at for at in range(len(rows[0])) if any(_given(row[at]) for row in rows)]
    groups: list[list[int]] = []
    for at in used:
        if groups and at == groups[-1][-1] + 1:
            groups[-1].append(at)
        else:
            groups.append([at])
    if len(groups) < 2 or any(len(group) < 2 for group in groups) or not all(_given(rows[0][at]) for at in used):
        return [block]
    ends = {max(place for place, row in enumerate(rows) if any(_given(row[at]) for at in group)) for group in groups}
    names = [one_line(rows[0][at]) for at in used]
    if len(ends) == 1 and len(set(names)) == len(names):
        return [block]
    return [_side(block, group[0], group[-1] + 1) for group in groups]


def _side(block: _Block, first: int, end: int) -> _Block:
    kept = [
        (row[first:end], place)
        for row, place in zip(block.rows, block.places, strict=True)
        if any(map(_given, row[first:end]))
    ]
    return _Block([row for row, _ in kept], [place for _, place in kept], block.left + first)


def _given(cell: object) -> bool:
    return cell is not None and cell != ""


def _filled(row: Sequence[Any]) -> int:
    return sum(map(_given, row))


def _is_number(cell: object) -> bool:
    if isinstance(cell, str):
        return any(sign.isdigit() for sign in cell) and not any(sign.isalpha() for sign in cell)
    return _given(cell)


_KINDS: Mapping[type, str] = {
    bool: "BOOLEAN", datetime.date: "DATE", datetime.datetime: "TIMESTAMP", datetime.time: "TIME",
    datetime.timedelta: "INTERVAL",
}  # fmt: skip


def _type(column: Sequence[Any], left_out: Collection[int]) -> str:
    """The type of cells that are all of one kind; VARCHAR where their texts are to be looked at."""
    kept = [cell for place, cell in enumerate(column) if _given(cell) and place not in left_out]
    kinds = {type(cell) for cell in kept}
    if kinds and kinds <= {int, float}:
        whole = all(float(cell).is_integer() and abs(cell) < EXACT_INTEGER for cell in kept)
        return (
            "VARCHAR"
            if whole and min(kept) >= 19_000_101 and max(kept) <= 21_001_231
            else "BIGINT"
            if whole
            else "DOUBLE"
        )
    if kinds == {datetime.date, datetime.datetime}:
        return "TIMESTAMP"
    if kinds == {datetime.time, datetime.timedelta}:
        return "INTERVAL"
    return _KINDS.get(next(iter(kinds)), "VARCHAR") if len(kinds) == 1 else "VARCHAR"


def _decimal_sign(column: Sequence[Any]) -> str:
    """The sign that the texts of a column have in their numbers, for its numbers to be written in the same form."""
    texts = [cell for cell in column if isinstance(cell, str)]
    return "," if any(map(_COMMA.search, texts)) and not any(map(_POINT.search, texts)) else "."


_COMMA, _POINT = re.compile(r"\d,(?:\d{1,2}|\d{4,})(?!\d)"), re.compile(r"\d\.(?:\d{1,2}|\d{4,})(?![\d.])")


def _text(cell: Any, sign: str) -> str | None:
    """A cell as text that its type can be read from: workbooks keep every number as a float."""
    if not _given(cell):
        return None
    if isinstance(cell, datetime.timedelta):
        return f"{cell.total_seconds():g} seconds"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() else repr(cell).replace(".", sign)
    return str(cell)


def _as_codes(column: list[Any], codes: Sequence[tuple[int, str]], places: Sequence[int]) -> list[Any]:
    """The column as it is shown, where every number in it has a format that fills it with zeros."""
    formats = dict(codes)
    numbers = [place for cell, place in zip(column, places, strict=True) if isinstance(cell, int | float)]
    if not numbers or any(place not in formats for place in numbers):
        return column
    return [
        _filled_with_zeros(cell, formats[place]) if isinstance(cell, int | float) else cell
        for cell, place in zip(column, places, strict=True)
    ]


def _filled_with_zeros(number: float, form: str) -> str:
    """As the format shows it: 0 stands for a digit, anything else for itself.

    >>> _filled_with_zeros(1067.0, "00000"), _filled_with_zeros(42, "SKU-0000")
    ('01067', 'SKU-0042')
    """
    digits = f"{abs(int(number)):0{form.count('0')}d}"
    spare = len(digits) - form.count("0")
    signs, shown = iter(digits[spare:]), "".join
    filled = shown(next(signs) if sign == "0" else sign for sign in form)
    at = form.index("0")
    return f"{'-' if number < 0 else ''}{filled[:at]}{digits[:spare]}{filled[at:]}"


def _uncomputed(names: Sequence[str], rows: Sequence[Sequence[int]], places: Sequence[int]) -> list[str]:
    """What is to be said of formulas without values."""
    within = set(places)
    counts = {name: len(within.intersection(each)) for name, each in zip(names, rows, strict=True)}
    return [
        f"column “{name}” has {count:,} {'formula' if count == 1 else 'formulas'} without values; open the workbook in a "
        "spreadsheet program and save it, so that they are computed"
        for name, count in counts.items()
        if count
    ]


_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_CHUNK, _LONGEST_CELL, _LARGEST_PART = 1 << 20, 1 << 20, 32 << 20
_BARE_FORMULA = re.compile(
    rb'<c (?![^>]{0,200}\bt="str")[^>]{0,200}?\br="([A-Z]{1,3})(\d{1,7})"[^>]{0,200}>'
    rb"<f[^>]{0,500}>(?:[^<]{0,900}</f>)?(?:<v\s{0,9}/>|<v>\s{0,9}</v>)?</c>"
)


def _cells_of(path: Path) -> dict[str, _Cells]:
    """By sheet, what an .xlsx file says of its cells; nothing of other kinds, or where it is written in another way."""
    if not zipfile.is_zipfile(path):
        return {}
    try:
        with zipfile.ZipFile(path) as book:
            formats = _code_formats(book)
            return {name: _scan(book, part, formats) for name, part in _sheet_parts(book).items()}
    except (zipfile.BadZipFile, KeyError, OSError, EOFError, ValueError, ElementTree.ParseError):
        return {}


def _part(book: zipfile.ZipFile, name: str) -> ElementTree.Element:
    if book.getinfo(name).file_size > _LARGEST_PART:
        raise ValueError(f"{name} is too large")
    return ElementTree.fromstring(book.read(name))


def _sheet_parts(book: zipfile.ZipFile) -> dict[str, str]:
    targets = {each.get("Id"): each.get("Target", "") for each in _part(book, "xl/_rels/workbook.xml.rels")}
    found = {}
    for sheet in _part(book, "xl/workbook.xml").iter(f"{_MAIN}sheet"):
        target = targets.get(sheet.get(_RELATION, ""), "")
        part = target.lstrip("/") if target.startswith("/") else f"xl/{target}"
        if part in book.namelist():
            found[sheet.get("name", "")] = part
    return found


def _code_formats(book: zipfile.ZipFile) -> dict[bytes, str]:
    """By the number of a style, its format where that fills numbers with zeros."""
    if "xl/styles.xml" not in book.namelist():
        return {}
    styles = _part(book, "xl/styles.xml")
    codes = {each.get("numFmtId"): _code_format(each.get("formatCode", "")) for each in styles.iter(f"{_MAIN}numFmt")}
    used = styles.find(f"{_MAIN}cellXfs")
    numbered = enumerate(each.get("numFmtId") for each in used) if used is not None else ()
    return {str(number).encode(): form for number, code in numbered if (form := codes.get(code))}


def _code_format(code: str) -> str:
    """The format without quotes, where it has two zeros at least, first, and else only signs that stand for themselves."""
    parts = re.fullmatch(
        r'((?:"[^"0]*"|\\[^0]|[-/ ])*)(00(?:0|[-/ ]|\\[^0]|"[^"0]*")*)', code.split(";")[0].removesuffix("@")
    )
    return re.sub(r'["\\]', "", parts[0]) if parts else ""


def _scan(book: zipfile.ZipFile, part: str, formats: Mapping[bytes, str]) -> _Cells:
    """One pass over a sheet's file."""
    codes, uncomputed = defaultdict[int, list[tuple[int, str]]](list), defaultdict[int, list[int]](list)
    styled = b"|".join(map(re.escape, formats))
    code = (
        re.compile(rb'<c (?=[^>]{0,200}\bs="(' + styled + rb')")[^>]{0,200}?\br="([A-Z]{1,3})(\d{1,7})"[^>/]{0,200}>')
        if formats
        else None
    )
    rest = b""
    with book.open(part) as file:
        while chunk := file.read(_CHUNK):
            text = (rest + chunk).replace(b"<x:", b"<").replace(b"</x:", b"</")
            end = max(text.rfind(b"<c "), len(text) - _LONGEST_CELL, 0)
            _collect(text[:end], formats, code, codes, uncomputed)
            rest = text[end:]
    _collect(rest, formats, code, codes, uncomputed)
    return _Cells(codes, uncomputed)


def _collect(
    text: bytes, formats: Mapping[bytes, str], code: "re.Pattern[bytes] | None",
    codes: dict[int, list[tuple[int, str]]], uncomputed: dict[int, list[int]],
) -> None:  # fmt: skip
    for found in code.finditer(text) if code else ():
        codes[column_number(found[2]) - 1].append((int(found[3]) - 1, formats[found[1]]))
    for found in _BARE_FORMULA.finditer(text) if b"<f" in text else ():
        uncomputed[column_number(found[1]) - 1].append(int(found[2]) - 1)
