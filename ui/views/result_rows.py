"""The rows that are shown of an answer: those of its newest SQL, as far as they are known here."""

from dataclasses import dataclass
from typing import Any

from agent.conversation.json_values import plain_rows
from ui.session.conversation_view import TurnView
from ui.session.session import Session
from ui.views.words import counted, milliseconds

SHOWN_ROWS = 2000
NO_ROWS = "**No rows yet.** Ask a question: the rows that answer it appear here, and can be exported."


@dataclass(frozen=True, slots=True)
class Rows:
    """What is shown of a result: at most `SHOWN_ROWS` of its `count` rows, and a sentence about them."""

    columns: list[str]
    rows: list[list[Any]]
    count: int
    truncated: bool
    told: str


def rows_of(session: Session, turn: TurnView | None, index: int) -> Rows:
    if turn is None or not turn.is_over:
        return Rows([], [], 0, False, NO_ROWS)
    ran, answer, result = turn.ran, turn.answer or {}, session.results.get(index)
    seen = answer.get("shown")
    if ran is not None and ran.error is None:
        columns, rows, count, truncated = list(ran.columns), list(map(list, ran.rows)), ran.row_count, ran.truncated
        took = f" in {milliseconds(ran.wall_ms)}, from SQL run by hand"
    else:
        columns, rows = (
            (seen["headings"], seen["rows"]) if seen else (answer.get("columns", []), answer.get("rows", []))
        )
        count, truncated, took = turn.row_count, answer.get("truncated", False), ""
    if result and len(result.columns) == len(columns):  # all rows of the newest SQL; `seen` may have more columns
        rows = plain_rows(result.rows[:SHOWN_ROWS])
    cut = ", cut off by the row limit" if truncated else ""
    told = f"{counted(count, 'row')}{took}{cut}" if columns else "This answer has no rows."
    return Rows(columns, rows[:SHOWN_ROWS], count, truncated, told)
