"""Files, result rows and schemas as HTML.

Files before they are taken in, as HTML: the first rows as they stand in the file, and as they are read.

The schema browser: tables that unfold into columns with types, keys and samples.

The rows that are shown of an answer: those of its newest SQL, as far as they are known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent.observe.events import plain_rows
from agent.presentation.shown import NOTHING, in_column
from tools.databases.files.sheets import Sheet, SheetColumn
from tools.schema import Column, Schema, Table
from ui.session.conversation_view import TurnView
from ui.session.session import Session
from ui.views.words import counted, html, milliseconds

SHOWN_ROWS, SHOWN_COLUMNS = 8, 12
_KINDS = {
    "VARCHAR": "text", "BIGINT": "number", "INTEGER": "number", "DOUBLE": "number", "HUGEINT": "number", "DATE": "date",
    "TIMESTAMP": "date and time", "TIME": "time", "BOOLEAN": "yes or no", "INTERVAL": "span of time",
}  # fmt: skip


def preview_html(sheet: Sheet, is_open: str = "") -> str:
    """One sheet: what is in the file with its row of names marked, and the table that it becomes. `is_open`: the name of the
    data that it takes the place of."""
    where = f"{html(sheet.file)}{f' · {html(sheet.name)}' if sheet.name else ''}"
    size = f"{counted(sheet.row_count, 'row')}, {counted(len(sheet.columns), 'column')}"
    rows = f"table <code>{html(sheet.table)}</code>, {size}"
    instead = f" Opened, it takes the place of {html(is_open)}; that can be undone." if is_open else ""
    rows_filed = (_filed_row(place, row, sheet.header) for place, row in enumerate(sheet.first[:SHOWN_ROWS]))
    read, filed = _table("As it is read", _as_read(sheet)), _table("In the file", "".join(rows_filed))
    return (
        f'<div class="preview"><h3>Open {where}? <small>{rows}.{instead}</small></h3>{_notes(sheet)}{read}{filed}</div>'
    )


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
    """What a person should know before the rest: how the file was read, columns that stay text though they look like numbers or
    dates, and a row of totals."""
    lost = [column for column in sheet.columns if column.warns]
    told = "".join(f"<li>{html(line[:1].upper() + line[1:])}</li>" for line in sheet.told)
    told += "".join(f"<li><b>{html(column.name)}</b> {_verb(column)} {html(column.note)}</li>" for column in lost)
    if sheet.total:
        kept = "is a row like any other" if sheet.keeps_total else "is left out"
        told += f"<li>The last row ({html(', '.join(sheet.total))}) adds up those above it, and {kept}</li>"
    return f'<ul class="doubts">{told}</ul>' if told else ""


def _verb(column: SheetColumn) -> str:
    return "stays" if column.note.startswith("text,") else "is"


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
    note = column.note if column.note and not column.warns else ""
    return html(f"{kind}, {note}" if note else kind)


def _cell(cell: str, column: SheetColumn) -> str:
    return f"<td{_side(column)}>{html(cell) if cell else '–'}</td>"


def _side(column: SheetColumn) -> str:
    return ' class="number"' if _KINDS.get(column.type) == "number" else ""


def _filed_row(place: int, row: Sequence[str], header: int | None) -> str:
    kind = "names" if place == header else "left-out" if header is not None and place < header else ""
    told = {"names": "names the columns", "left-out": "is left out"}.get(kind, "")
    cells = "".join(f"<td>{html(cell)}</td>" for cell in row[:SHOWN_COLUMNS])
    return f'<tr class="filed {kind}" title="{told}"><th scope="row">{place + 1}</th>{cells}</tr>'


def schema_html(schema: Schema, name: str) -> str:
    """A filter box and a list of tables; a click on a name copies it."""
    tables = "".join(_schema_table(table) for table in schema.tables)
    return (
        f'<div class="schema" data-schema><p class="source"><b>{html(name)}</b> <small>{html(schema.dialect)}, '
        f"{counted(len(schema.tables), 'table')}</small></p>"
        '<input type="search" data-filter placeholder="find a table or column" aria-label="find a table or column">'
        f'{tables}<p class="hint" data-no-hit hidden>No table or column is called that.</p></div>'
    )


def _schema_table(table: Table) -> str:
    rows = "" if table.row_count is None else f" <small>{counted(table.row_count, 'row')}</small>"
    refers = {name: key.ref_table for key in table.foreign_keys for name in key.columns}
    columns = "".join(_column(column, refers.get(column.name)) for column in table.columns)
    comment = f"<p><small>{html(table.comment)}</small></p>" if table.comment else ""
    words = html(" ".join([table.name, *(column.name for column in table.columns)]).casefold())
    return (
        f'<details data-words="{words}"><summary><code>{html(table.name)}</code>{rows}</summary>'
        f"{comment}<ul>{columns}</ul></details>"
    )


def _column(column: Column, refers: str | None) -> str:
    key = '<abbr title="primary key">key</abbr> ' if column.primary_key else ""
    to = f'<abbr title="refers to {html(refers)}">→ {html(refers)}</abbr> ' if refers else ""
    samples = f'<span class="samples">{html(", ".join(column.samples))}</span>' if column.samples else ""
    name = html(column.name)
    return (
        f'<li><button type="button" data-copy="{name}" title="copy the name" aria-label="{name}: copy the name">'
        f"<code>{name}</code></button> "
        f"<small>{html(column.type.lower())}</small> {key}{to}{samples}</li>"
    )


MOST_ROWS = 2000
ASKED_BACK = "**No rows yet.** Choose a meaning next to the question: the rows appear here."
NO_ROWS = "**No rows yet.** Ask a question: the rows that answer it appear here, and can be exported."
AT_RIGHT = ("amount", "digits")  # kinds of cells whose last digits stand under each other


@dataclass(frozen=True, slots=True)
class Rows:
    """What is shown of a result: at most `MOST_ROWS` of its `count` rows, and a sentence about them. `kinds`: of the cells of
    each column, as `agent.presentation.shown` names them; empty for rows that are shown as the database gives them."""

    columns: list[str]
    rows: list[list[Any]]
    count: int
    truncated: bool
    told: str
    kinds: list[str] = field(default_factory=list)

    @property
    def at_right(self) -> list[bool]:
        """Which columns hold numbers."""
        if self.kinds:
            return [kind in AT_RIGHT for kind in self.kinds]
        return [_numbers([row[place] for row in self.rows]) for place in range(len(self.columns))]


def rows_of(session: Session, turn: TurnView | None, index: int) -> Rows:
    if turn is None or not (turn.is_over or (turn.ran and turn.ran.error is None)):
        return Rows([], [], 0, False, NO_ROWS)
    if turn.unclear and turn.ran is None:
        return Rows([], [], 0, False, ASKED_BACK)
    ran, answer, kinds = turn.ran, turn.answer or {}, list[str]()
    seen = answer.get("shown")
    if ran is not None and ran.error is None:
        columns, rows, count, truncated = list(ran.columns), list(map(list, ran.rows)), ran.row_count, ran.truncated
        took = f" in {milliseconds(ran.wall_ms)}, from SQL run by hand"
    else:
        columns, rows = answer.get("columns", []), answer.get("rows", [])
        if seen:
            columns, rows, kinds = seen["headings"], seen["rows"], seen["kinds"]
        count, truncated, took = turn.row_count, answer.get("truncated", False), ""
    whole = session.kept.whole_rows.get(index)
    if whole and len(whole[0]) == len(columns):
        rows = plain_rows(whole[:MOST_ROWS])
    cut = ", cut off by the row limit" if truncated else ""
    told = f"{counted(count, 'row')}{took}{cut}" if columns else "This answer has no rows."
    return Rows(columns, rows[:MOST_ROWS], count, truncated, told, kinds)


def in_order(own: Rows, column: int, descending: bool) -> Rows:
    """The rows sorted by a column (0 is the first): numbers as numbers before texts, texts by their letters in either case, and
    empty cells last in both directions."""

    def key(row: list[Any]) -> tuple[bool, Any]:
        cell = row[column]
        return isinstance(cell, str), cell.casefold() if isinstance(cell, str) else cell

    known = sorted((row for row in own.rows if row[column] is not None), key=key, reverse=descending)
    return replace(own, rows=[*known, *(row for row in own.rows if row[column] is None)])


def table_of(own: Rows) -> dict[str, Any]:
    """The rows for a table: raw cells, with what is written in each and on which side."""
    columns = [[row[place] for row in own.rows] for place in range(len(own.columns))]
    written = [_written(cells, own.kinds[place] if own.kinds else "") for place, cells in enumerate(columns)]
    sides = ["text-align: right" if right else "" for right in own.at_right]
    metadata = {"display_value": list(map(list, zip(*written, strict=True))), "styling": [sides] * len(own.rows)}
    return {"headers": own.columns, "data": own.rows, "metadata": metadata}


_WIDTHS, _FIRST_PX, _SIGN_PX, _EDGES_PX = (72, 320), 170, 8, 40
_PANEL_PX = 370  # of a table without its row numbers


def column_widths(own: Rows) -> list[int]:
    """Pixels for each column by what is in it, within bounds, where they do not fit next to each other; otherwise none. The
    first of them stays in sight when the others are scrolled, so it is narrower."""
    longest = [
        max([len(name), *(len(str(row[place])) for row in own.rows[:200])]) for place, name in enumerate(own.columns)
    ]
    widths = [min(_WIDTHS[1], max(_WIDTHS[0], _SIGN_PX * length + _EDGES_PX)) for length in longest]
    return [min(widths[0], _FIRST_PX), *widths[1:]] if sum(widths) > _PANEL_PX else []


def _written(cells: list[Any], kind: Any) -> list[str]:
    """Cells as people read them; of SQL that was run by hand as the database gives them, for its writer wants them exact."""
    return in_column(cells, kind) if kind else [NOTHING if cell is None else str(cell) for cell in cells]


def _numbers(cells: list[Any]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in known)
