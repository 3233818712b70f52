"""Writes a small .xlsx file with the standard library: what test_open_files.py opens."""

import datetime
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

Cell = str | int | float | bool | datetime.date | None

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_EPOCH = datetime.date(1899, 12, 30)
_STYLES = (
    f'<styleSheet xmlns="{_MAIN}"><fonts><font/></fonts><fills><fill/></fills><borders><border/></borders>'
    '<cellStyleXfs><xf/></cellStyleXfs><cellXfs><xf/><xf numFmtId="14" applyNumberFormat="1"/></cellXfs></styleSheet>'
)


def write_workbook(path: Path, sheets: Mapping[str, Sequence[Sequence[Cell]]]) -> Path:
    entries = "".join(f'<sheet name="{escape(name)}" sheetId="{i}" r:id="r{i}"/>' for i, name in enumerate(sheets, 1))
    links = "".join(_link(f"r{i}", "worksheet", f"worksheets/sheet{i}.xml") for i, _ in enumerate(sheets, 1))
    files = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="xml"'
        ' ContentType="application/xml"/></Types>',
        "_rels/.rels": _links(_link("r1", "officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{entries}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": _links(links + _link("styles", "styles", "styles.xml")),
        "xl/styles.xml": _STYLES,
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        for i, rows in enumerate(sheets.values(), 1):
            archive.writestr(f"xl/worksheets/sheet{i}.xml", _sheet(rows))
    return path


def _link(id_: str, kind: str, target: str) -> str:
    return f'<Relationship Id="{id_}" Type="{_OFFICE}/{kind}" Target="{target}"/>'


def _links(links: str) -> str:
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{links}</Relationships>'


def _sheet(rows: Sequence[Sequence[Cell]]) -> str:
    texts = (
        f'<row r="{r}">{"".join(_cell(cell, f"{chr(65 + c)}{r}") for c, cell in enumerate(row))}</row>'
        for r, row in enumerate(rows, 1)
    )
    return f'<worksheet xmlns="{_MAIN}"><sheetData>{"".join(texts)}</sheetData></worksheet>'


def _cell(cell: Cell, place: str) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{escape(cell)}</t></is></c>'
    if isinstance(cell, bool):
        return f'<c r="{place}" t="b"><v>{int(cell)}</v></c>'
    if isinstance(cell, datetime.date):
        return f'<c r="{place}" s="1"><v>{(cell - _EPOCH).days}</v></c>'
    return f'<c r="{place}"><v>{cell}</v></c>'
