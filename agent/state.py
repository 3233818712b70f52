"""What the graph carries from node to node: plain lists, dicts and strings, so that a checkpointer can store them.

Result rows never enter the state beyond a preview; the whole result lies in the toolbox.
"""

from typing import Any, TypedDict


class Turn(TypedDict):
    """An answered question of the conversation."""

    question: str
    sql: str


class Attempt(TypedDict):
    """One SQL that was tried, and what came of it."""

    sql: str
    repaired: bool  # written by the deterministic repair, not by the model
    error: dict[str, Any] | None  # a `tools.result.QueryError` as a dict
    row_count: int | None  # None: did not run


class DrawnPlan(TypedDict):
    """A plan that the model may go by."""

    text: str
    drawn: int  # samples that say so
    log_likelihood: float


class State(TypedDict):
    question: str
    evidence: str
    turns: list[Turn]
    values: list[dict[str, Any]]  # `tools.values.ValueMatch`
    links: list[dict[str, Any]]  # `tools.linking.Link`, best first
    plan: str
    plans: list[DrawnPlan]  # the greedy one first; more than one where candidates vote
    unclear: dict[str, str]  # what the asker is to choose from: what it is called -> the evidence that it makes
    candidate: str  # SQL as the model wrote it, waiting to be checked
    checked: str  # the same, repaired where that was needed, waiting to be executed
    sql: str  # the SQL that stands: it ran, and `preview` shows its result
    attempts: list[Attempt]
    preview: dict[str, Any] | None  # columns, first rows, row count and truncated flag
    steps: list[dict[str, Any]]  # `agent.steps.Step`
    answer: str


def opening(question: str, evidence: str = "") -> dict[str, Any]:
    """The update that starts a new question; the conversation's turns stay."""
    return {
        "question": question,
        "evidence": evidence,
        "values": [],
        "links": [],
        "unclear": {},
        "plan": "",
        "plans": [],
        "candidate": "",
        "checked": "",
        "sql": "",
        "attempts": [],
        "preview": None,
        "steps": [],
        "answer": "",
    }
