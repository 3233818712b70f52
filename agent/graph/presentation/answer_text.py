"""Writes the one-sentence answer from a template, the result and the SQL: a 135M model must not retype rows."""

from collections.abc import Sequence

from agent.graph.presentation.result_sentence import result_sentence
from agent.graph.presentation.shown import Shown
from agent.state import State
from tools.linking.ambiguity import Meaning
from tools.sql.parse_quietly import parse_or_nothing

REPEATED = "the model wrote the same query again"
"""The message of an attempt that repeats an earlier one; it says nothing about the database."""

_REASONS = {
    "refused": "The query was refused: only reading is allowed",
    "timeout": "The query took too long",
    "memory": "The query needs more memory than it may use",
    "interrupted": "The query was stopped",
    "connection": "The database cannot be reached",
}


def sentence(state: State, shown: Shown | None, dialect: str) -> str:
    """What the rows say, or why there are none. `shown` is None if no query ran."""
    if shown is None:
        return _failure(state)
    return result_sentence(shown) or _nothing(state["sql"], dialect)


def _nothing(sql: str, dialect: str) -> str:
    """That there are no rows, with the condition that none of them meets."""
    trees = parse_or_nothing(sql, dialect)
    where = trees[0].args.get("where") if len(trees) == 1 else None
    return f"No rows were found where {where.this.sql(dialect)}." if where else "No rows were found."


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
