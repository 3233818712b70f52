"""Fills the slots of a prompt from what is known about a question. Needs no state, database or model, so that training
data fill the slots exactly as a conversation does.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agent.graph.toolbox import AgentOptions
from agent.prompts.slots import Slots, Try
from agent.state import Attempt
from tools.linking.link_schema import Link, join_path, shortlist
from tools.linking.match_values import ValueMatch
from tools.schema import Schema

MOST_LINKS = 16
JOINED_LINKS = 4  # number of best links whose tables' joins the prompt shows


def prompt_slots(
    question: str,
    schema: Schema,
    dialect: str,
    options: AgentOptions,
    *,
    links: tuple[Link, ...] = (),
    values: tuple[ValueMatch, ...] = (),
    history: tuple[tuple[str, str], ...] = (),
    plan: str = "",
    tries: tuple[Try, ...] = (),
    knowledge: tuple[str, ...] = (),
    examples: tuple[tuple[str, str], ...] = (),
    evidence: str = "",
) -> Slots:
    """The slots for a step. `schema` is the whole schema; the slots hold what the prompt shows of it."""
    return Slots(
        schema=shown(schema, links, options.schema_budget) if options.hints else schema,
        dialect=dialect,
        question=question,
        evidence=evidence,
        knowledge=knowledge,
        examples=examples,
        history=history,
        values=values,
        links=links[:MOST_LINKS],
        joins=join_path(schema, list(dict.fromkeys(each.table for each in links[:JOINED_LINKS]))),
        plan=plan,
        tries=tries,
    )


def shown(schema: Schema, links: tuple[Link, ...], column_budget: int) -> Schema:
    """The whole schema if it is small, so that all questions share its KV; otherwise the tables with the best links."""
    if sum(len(table.columns) for table in schema.tables) <= column_budget:
        return schema
    return shortlist(schema, links, len(schema.tables), column_budget)


def tries_of(attempts: Iterable[Attempt]) -> tuple[Try, ...]:
    """What the prompt says about SQL that was tried. A statement that was tried twice is shown once: in the place of its last
    try, but with the outcome of its first, which says more than that it was repeated.
    """
    by_sql = {attempt["sql"]: attempt for attempt in reversed([*attempts])}
    failed = ((attempt["sql"], attempt["error"]) for attempt in reversed(by_sql.values()))
    return tuple(Try(sql, _trouble(error)) for sql, error in failed if error)


def _trouble(error: Mapping[str, Any]) -> str:
    asked = str(error["name"] or "").casefold()
    candidates = ", ".join(name for name in error["candidates"] if name.casefold() != asked)
    message: str = error["message"]
    return message + (f"; there is: {candidates}" if candidates else "")
