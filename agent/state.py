"""What the graph carries from node to node: plain lists, dicts and strings, so that a checkpointer can store them.

Result rows never enter the state beyond a preview; the whole result lies in the toolbox.
"""

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

Reading = Literal[
    "standalone", "follow_up"
]  # how a question is understood: by itself, or as going on from an earlier one


class Turn(TypedDict):
    """An answered question of the conversation."""

    question: str
    sql: str
    number: NotRequired[
        int
    ]  # of the question in the conversation, from 1; conversations stored by old releases lack it
    entity: NotRequired[
        str | None
    ]  # what the answer names, where it is one thing: later questions call it "that artist"


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
    reading: Reading


class State(TypedDict):
    question: str
    evidence: str
    turns: list[Turn]
    number: int  # of this question in the conversation, from 1
    requested: Reading | None  # the reading that the asker chose
    refused: list[str]  # SQL that the asker has seen and does not want again
    readings: list[Reading]  # to be decoded, the likelier first
    reading: Reading  # the one that the candidate follows
    resolved: str  # the follow-up written out as a question that stands by itself; empty where no rule could
    leans_on: int | None  # index of the turn that a follow-up continues; None: the newest
    started_over: bool  # the asker said so and asked nothing
    values: list[dict[str, Any]]  # `tools.linking.match_values.ValueMatch`
    links: list[dict[str, Any]]  # `tools.linking.link_schema.Link`, best first
    plan: str
    plans: list[DrawnPlan]  # the greedy one first; more than one where candidates vote
    unclear: dict[str, str]  # what the asker is to choose from: what it is called -> the evidence that it makes
    candidate: str  # SQL as the model wrote it, waiting to be checked
    checked: str  # the same, repaired where that was needed, waiting to be executed
    sql: str  # the SQL that stands: it ran, and `preview` shows its result
    attempts: list[Attempt]
    preview: dict[str, Any] | None  # columns, first rows, row count and truncated flag
    steps: list[dict[str, Any]]  # `agent.observe.step_record.Step`
    answer: str


def opening(
    question: str,
    evidence: str = "",
    number: int = 1,
    requested: Reading | None = None,
    refused: Sequence[str] = (),
) -> dict[str, Any]:
    """The update that starts a new question; the conversation's turns stay."""
    return {
        "question": question,
        "evidence": evidence,
        "number": number,
        "requested": requested,
        "refused": list(refused),
        "readings": ["follow_up"],
        "reading": "follow_up",
        "resolved": "",
        "leans_on": None,
        "started_over": False,
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
