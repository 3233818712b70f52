"""Files before they are taken in, as HTML: the first rows as they stand in the file, and as they are read."""

from collections.abc import Sequence

from tools.databases.files.sheets import Sheet, SheetColumn
from ui.views.words import counted, html

SHOWN_ROWS, SHOWN_COLUMNS = 8, 12
_KINDS = {
    "VARCHAR": "text", "BIGINT": "number", "INTEGER": "number", "DOUBLE": "number", "HUGEINT": "number", "DATE": "date",
    "TIMESTAMP": "date and time", "TIME": "time", "BOOLEAN": "yes or no",
}  # fmt: skip


def preview_html(sheet: Sheet) -> str:
    """One sheet: what is in the file with its row of names marked, and the table that it becomes."""
    where = f"{html(sheet.file)}{f' · {html(sheet.name)}' if sheet.name else ''}"
    rows = f"table <code>{html(sheet.table)}</code>, {counted(sheet.row_count, 'row')}"
    read, filed = _table("As it is read", _as_read(sheet)), _table("In the file", _filed(sheet))
    return f'<div class="preview"><h3>{where} <small>{rows}</small></h3>{_notes(sheet)}{read}{filed}</div>'


def _table(title: str, content: str) -> str:
    return f'<h4>{title}</h4><div class="scroll"><table aria-label="{title}">{content}</table></div>'


def header_choices(sheet: Sheet) -> list[tuple[str, int]]:
    """The rows that may name the columns, and -1 for none."""
    named = [(f"row {place + 1}: {_short(row)}", place) for place, row in enumerate(sheet.first[:SHOWN_ROWS])]
    return [*named, ("no row: number the columns", -1)]


def _short(row: Sequence[str]) -> str:
    text = ", ".join(cell for cell in row if cell)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _notes(sheet: Sheet) -> str:
    """What a person should know before the rest: columns that stay text though they look like numbers or dates, and a row of
    totals."""
    lost = [column for column in sheet.columns if _is_doubtful(column)]
    told = "".join(f"<li><b>{html(column.name)}</b> stays {html(column.note)}</li>" for column in lost)
    if sheet.total:
        kept = "is a row like any other" if sheet.keeps_total else "is left out"
        told += f"<li>The last row ({html(', '.join(sheet.total))}) adds up those above it, and {kept}</li>"
    return f'<ul class="doubts">{told}</ul>' if told else ""


def _is_doubtful(column: SheetColumn) -> bool:
    return column.note.startswith("text,")


def _as_read(sheet: Sheet) -> str:
    columns = sheet.columns[:SHOWN_COLUMNS]
    head = "".join(
        f'<th scope="col"{_side(column)}>{html(column.name)}<small>{_kind(column)}</small></th>' for column in columns
    )
    body = "".join(
        f"<tr>{''.join(_cell(cell, column) for cell, column in zip(row, columns, strict=False))}</tr>"
        for row in sheet.rows
    )
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"


def _kind(column: SheetColumn) -> str:
    kind = _KINDS.get(column.type, column.type.lower())
    note = column.note if column.note and not _is_doubtful(column) else ""
    return html(f"{kind}, {note}" if note else kind)


def _cell(cell: str, column: SheetColumn) -> str:
    return f"<td{_side(column)}>{html(cell) if cell else '–'}</td>"


def _side(column: SheetColumn) -> str:
    return ' class="number"' if _KINDS.get(column.type) == "number" else ""


def _filed(sheet: Sheet) -> str:
    return "".join(_filed_row(place, row, sheet.header) for place, row in enumerate(sheet.first[:SHOWN_ROWS]))


def _filed_row(place: int, row: Sequence[str], header: int | None) -> str:
    kind = "names" if place == header else "left-out" if header is not None and place < header else ""
    told = {"names": "names the columns", "left-out": "is left out"}.get(kind, "")
    cells = "".join(f"<td>{html(cell)}</td>" for cell in row[:SHOWN_COLUMNS])
    return f'<tr class="filed {kind}" title="{told}"><th scope="row">{place + 1}</th>{cells}</tr>'
