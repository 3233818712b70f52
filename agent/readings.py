"""The two readings of a question in a conversation: by itself, or as a follow-up of an earlier one. Says what each shows
the model, and which one's SQL is preferred. Needs no model and runs no query.
"""

import re
from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from agent.follow_ups import new_words
from agent.outcomes import same_sql
from agent.state import State, Turn
from tools.linking.link_schema import Mentions, mentions
from tools.result import QueryError
from tools.schema import Schema
from tools.sql.scope import parse_or_nothing

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def history(state: State) -> tuple[tuple[str, str], ...]:
    """The earlier question and SQL that the prompt shows: the turn that a follow-up continues, nothing otherwise."""
    turn = None if state["resolved"] else continued(state)
    return ((turn["question"], turn["sql"]),) if turn else ()


def asked(state: State) -> str:
    """The question as it is put to the model."""
    return state["question"] if state["reading"] == "standalone" else state["resolved"] or state["question"]


def continued(state: State) -> Turn | None:
    """The turn that the question continues under the state's reading; None if it continues none."""
    turns = state.get("turns") or []
    if state["reading"] == "standalone" or not turns:
        return None
    place = state["leans_on"]
    return turns[-1 if place is None else place]


def continued_number(state: State) -> int | None:
    """The number of the question that the answer continues, from 1."""
    turn = continued(state)
    return None if turn is None else turn.get("number") or (state["leans_on"] or 0) + 1


def turn_of(state: State) -> Turn:
    """The turn as later questions may refer to it."""
    preview = state["preview"] or {"rows": [], "row_count": 0}
    entity = entity_of(preview["rows"], preview["row_count"])
    return Turn(question=state["question"], sql=state["sql"], number=state["number"], entity=entity)


def entity_of(rows: Sequence[Sequence[Any]], row_count: int) -> str | None:
    """What an answer of one row names: its first text value."""
    texts = (cell for cell in rows[0] if isinstance(cell, str)) if row_count == 1 and rows else iter(())
    return next(texts, None)


def repeats_a_turn(state: State, sql: str, dialect: str) -> bool:
    """Whether a follow-up, not yet read by itself, got the SQL of a question that lacks one of its content words."""
    if state["reading"] == "standalone" or len(state["readings"]) > 1 or state["requested"] is not None:
        return False
    turns = state.get("turns") or []
    return any(new_words(state["question"], turn["question"]) and same_sql(sql, turn["sql"], dialect) for turn in turns)


def choose_reading(state: State, schema: Schema, checked: Sequence[tuple[str, QueryError | None]]) -> int:
    """Index of the best of `state["readings"]`, judged by their checked SQL: first by having no error, then by not repeating
    another question's SQL, then by how much of the question it covers, then by which reading is likelier.
    """
    named = mentions(schema, state["question"])

    def rank(place: int) -> tuple[bool, bool, float, int]:
        sql, error = checked[place]
        follow_up = state["readings"][place] == "follow_up"
        repeats = follow_up and repeats_a_turn(state | {"readings": ["follow_up"]}, sql, schema.dialect)
        return error is not None, repeats, -coverage(sql, state, named, schema.dialect), place

    return min(range(len(checked)), key=rank)


def coverage(sql: str, state: State, named: Mentions, dialect: str) -> float:
    """The share of what a question names (tables, columns, values, numbers) that its SQL uses; 0 if it names nothing."""
    nodes = [node for tree in parse_or_nothing(sql, dialect) for node in tree.walk()]
    tables = {node.name.casefold() for node in nodes if isinstance(node, exp.Table)}
    columns = {node.name.casefold() for node in nodes if isinstance(node, exp.Column)}
    literals = {str(node.this).casefold() for node in nodes if isinstance(node, exp.Literal)}
    used = [name.casefold() in tables for name in named.tables]
    used += [name.casefold() in columns for name in dict.fromkeys(column for _, column in named.columns)]
    used += [bool(cells & literals) for cells in _cells_by_phrase(state)]
    used += [number in literals for number in _NUMBER.findall(state["question"])]
    return sum(used) / len(used) if used else 0.0


def _cells_by_phrase(state: State) -> list[set[str]]:
    found: dict[str, set[str]] = {}
    for value in state["values"]:
        found.setdefault(value["phrase"], set()).add(str(value["value"]).casefold())
    return list(found.values())
