"""What the graph passes from node to node: plain lists, dicts and strings, so that a checkpointer can store them.

Only a preview of the result's rows enters the state; the whole result is in the toolbox.
"""

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

Reading = Literal["standalone", "follow_up"]  # how a question is understood: by itself, or as continuing an earlier one


class Turn(TypedDict):
    """An answered question of the conversation."""

    question: str
    sql: str
    number: NotRequired[int]  # of the question in the conversation, from 1; absent if stored by an old release
    entity: NotRequired[str | None]  # the one thing that the answer names, if any: "that artist" means it


class OpenQuestion(TypedDict):
    """A question that was asked back. What the asker says next may go on from it."""

    said: str  # as the asker put it
    question: str  # as a complete question
    number: int  # in the conversation, from 1
    phrase: str  # what of it is unclear
    options: dict[str, str]  # what that may mean: label -> the evidence to give for it


class Attempt(TypedDict):
    """One SQL statement that was tried, and its outcome."""

    sql: str
    repaired: bool  # written by the deterministic repair, not by the model
    error: dict[str, Any] | None  # a `tools.result.QueryError` as a dict
    row_count: int | None  # None if it did not run


class Written(TypedDict):
    """A text of the model's, in its own dialect."""

    text: str
    log_probs: list[float]  # of its tokens that no grammar forced


class Proposal(TypedDict):
    """A statement in the database's dialect."""

    sql: str
    written: Written | None  # from which it was translated; None if a person, a stored example or a rule gave it
    repaired: bool  # whether a rule changed it after that


def proposed(sql: str) -> Proposal:
    """A statement that the model did not write."""
    return Proposal(sql=sql, written=None, repaired=False)


class DrawnPlan(TypedDict):
    """A plan that the model may follow."""

    text: str
    drawn: int  # how many samples gave it
    log_likelihood: float
    reading: Reading


class State(TypedDict):
    question: str
    evidence: str
    said: str  # the question as the asker put it, where `question` was completed
    turns: list[Turn]
    open: NotRequired[OpenQuestion | None]  # if the question before this one was asked back
    completes: int | None  # number of the question that was asked back and from which this one goes on
    number: int  # of this question in the conversation, from 1
    requested: Reading | None  # the reading that the asker chose
    refused: list[str]  # SQL that the asker has seen and does not want again
    chosen: str  # SQL that the asker has chosen among the alternatives of an answer; empty otherwise
    readings: list[Reading]  # to be decoded, the likelier first
    reading: Reading  # the one that the candidate follows
    resolved: str  # the follow-up rewritten as a self-contained question; empty if no rule was sure
    leans_on: int | None  # index of the turn that a follow-up continues; None: the newest
    told: bool  # the answer is words alone, because nothing was asked of the data
    values: list[dict[str, Any]]  # `tools.linking.match_values.ValueMatch`
    links: list[dict[str, Any]]  # `tools.linking.link_schema.Link`, best first
    example: str  # the stored question whose SQL is taken; empty if there is none
    plan: str
    first_plans: dict[Reading, Written]  # of each reading, as the model wrote it before any change
    plans: list[DrawnPlan]  # one for each reading, the likelier first
    unclear: dict[str, str]  # what the asker can choose from: label -> the evidence to give for it
    candidate: Proposal  # waiting to be checked, then to be executed
    sql: str  # the accepted SQL: it ran, and `preview` shows its result
    attempts: list[Attempt]
    unsure: str  # why the answer is not given, in a sentence; empty if it is
    judgement: dict[str, Any] | None  # `agent.nodes.assess.Judgement` of the accepted SQL; None if none ran
    preview: dict[str, Any] | None  # columns, first rows, row count and truncated flag
    escalated: dict[str, Any] | None  # `agent.observe.audit.Escalation`; None if no larger model was asked
    steps: list[dict[str, Any]]  # `agent.observe.step_record.Step`
    answer: str


def opening(
    question: str,
    evidence: str = "",
    number: int = 1,
    requested: Reading | None = None,
    refused: Sequence[str] = (),
    chosen: str = "",
) -> dict[str, Any]:
    """The update that starts a new question; the conversation's turns, and a question that was asked back, stay."""
    return {
        "question": question,
        "evidence": evidence,
        "said": question,
        "completes": None,
        "number": number,
        "requested": requested,
        "refused": list(refused),
        "chosen": chosen,
        "readings": ["follow_up"],
        "reading": "follow_up",
        "resolved": "",
        "leans_on": None,
        "told": False,
        "values": [],
        "links": [],
        "unclear": {},
        "example": "",
        "plan": "",
        "first_plans": {},
        "plans": [],
        "candidate": proposed(""),
        "sql": "",
        "attempts": [],
        "unsure": "",
        "judgement": None,
        "preview": None,
        "escalated": None,
        "steps": [],
        "answer": "",
    }
