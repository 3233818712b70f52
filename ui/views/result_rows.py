"""The rows that are shown of an answer: those of its newest SQL, as far as they are known here."""

from dataclasses import dataclass, field
from typing import Any

from agent.conversation.json_values import plain_rows
from agent.graph.presentation.cells import NOTHING, in_column
from ui.session.conversation_view import TurnView
from ui.session.session import Session
from ui.views.words import counted, milliseconds

SHOWN_ROWS = 2000
ASKED_BACK = "**No rows yet.** Choose what is meant beside the question: the rows appear here."
NO_ROWS = "**No rows yet.** Ask a question: the rows that answer it appear here, and can be exported."
AT_RIGHT = ("amount", "digits")  # kinds of cells whose last digits stand under each other


@dataclass(frozen=True, slots=True)
class Rows:
    """What is shown of a result: at most `SHOWN_ROWS` of its `count` rows, and a sentence about them. `kinds`: of the cells of
    each column, as `agent.graph.presentation.shown` names them; empty for rows that are shown as the database gives them."""

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
    if turn is None or not turn.is_over:
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
    whole = session.whole_rows.get(index)
    if whole and len(whole[0]) == len(columns):
        rows = plain_rows(whole[:SHOWN_ROWS])
    cut = ", cut off by the row limit" if truncated else ""
    told = f"{counted(count, 'row')}{took}{cut}" if columns else "This answer has no rows."
    return Rows(columns, rows[:SHOWN_ROWS], count, truncated, told, kinds)


def table_of(own: Rows) -> dict[str, Any]:
    """The rows for a table: raw cells, by which it sorts, and beside them what is written in each and on which side."""
    columns = [[row[place] for row in own.rows] for place in range(len(own.columns))]
    written = [_written(cells, own.kinds[place] if own.kinds else "") for place, cells in enumerate(columns)]
    sides = ["text-align: right" if right else "" for right in own.at_right]
    metadata = {"display_value": list(map(list, zip(*written, strict=True))), "styling": [sides] * len(own.rows)}
    return {"headers": own.columns, "data": own.rows, "metadata": metadata}


def _written(cells: list[Any], kind: Any) -> list[str]:
    """Cells as people read them; of SQL that was run by hand as the database gives them, for its writer wants them exact."""
    return in_column(cells, kind) if kind else [NOTHING if cell is None else str(cell) for cell in cells]


def _numbers(cells: list[Any]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in known)
