"""Writes the one-sentence answer from a template, the result and the SQL: a 135M model must not retype rows."""

from collections.abc import Sequence
from typing import Any

from agent.state import State
from tools.linking.ambiguity import Meaning

REPEATED = "the model wrote the same query again"
"""The message of an attempt that repeats an earlier one; it says nothing about the database."""

_REASONS = {
    "refused": "The query was refused: only reading is allowed",
    "timeout": "The query took too long",
    "memory": "The query needs more memory than it may use",
    "interrupted": "The query was stopped",
    "connection": "The database cannot be reached",
}


def sentence(state: State) -> str:
    """What the rows say, or why there are none."""
    preview = state["preview"]
    if preview is None:
        return _failure(state)
    count, columns, rows = preview["row_count"], preview["columns"], preview["rows"]
    if count == 0:
        return "Nothing in the database fits the question."
    if count == 1 and len(columns) == 1:
        return f"{_label(columns[0])}: {_cell(rows[0][0])}."
    if count == 1:
        return (
            "; ".join(f"{_label(column)}: {_cell(cell)}" for column, cell in zip(columns, rows[0], strict=True)) + "."
        )
    amount = f"More than {count:,}" if preview["truncated"] else f"{count:,}"
    if len(columns) == 1 and count <= len(rows):
        return f"{_label(columns[0])}: " + ", ".join(_cell(row[0]) for row in rows) + "."
    first = ", ".join(_cell(cell) for cell in rows[0])
    return f"{amount} rows ({', '.join(map(_label, columns))}); the first is {first}."


def asked_back(meanings: Sequence[Meaning]) -> str:
    """The question that asks the asker what is meant."""
    *others, last = [one.label for one in meanings]
    return f"What does “{meanings[0].phrase}” mean: {', '.join(others)} or {last}?"


def _failure(state: State) -> str:
    if not state["attempts"]:
        return "No SQL was written for this question."
    own = [each for each in state["attempts"] if (each["error"] or {}).get("message") != REPEATED]
    last = (own or state["attempts"])[-1]
    error = last["error"] or {}
    reason = _REASONS.get(error.get("kind", ""), "No working SQL was found")
    told = f"{reason} ({error['message']})." if error.get("message") else f"{reason}."
    return f"{told} The last query was: {last['sql']}" if last["sql"] else told


def _label(column: str) -> str:
    if column.lower() in ("count(*)", "count_star()"):
        return "count"
    return column.replace("_", " ").strip() or "value"


def _cell(cell: Any) -> str:
    if cell is None:
        return "none"
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.4g}" if abs(cell) < 1000 else f"{cell:,.2f}"
