"""Checks the dicts and rounds inside events, so that code that shows them finds the fields that it expects."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, TypeAdapter

from decoding.engine.draft import ROOT
from decoding.engine.records.rounds import Round

MOST_SEQUENCES = 1_000_000  # in a forward: more cannot be, and would not fit a float
MOST_TOKENS = 10**12  # of a step, for the same reason
_Count = Annotated[int, Field(le=MOST_TOKENS)]


@dataclass(frozen=True, slots=True)
class _Step:
    """The fields of `agent.observe.step_record.Step`."""

    name: str
    wall_ms: FiniteFloat
    plain_ms: FiniteFloat | None = None
    plain_ms_source: str | None = None
    decoder: str | None = None
    prompt_tokens: _Count = 0
    cached_tokens: _Count = 0
    new_tokens: _Count = 0
    target_forwards: _Count = 0
    plain_forwards: _Count = 0
    tokens_per_forward: FiniteFloat | None = None
    forced_tokens: _Count = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Error:
    """The fields of `tools.result.QueryError`, or of the error that the agent gives instead."""

    kind: str
    message: str
    name: str | None = None
    position: int | None = None
    candidates: list[str] | None = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The fields of `agent.state.Attempt`."""

    sql: str
    repaired: bool = False
    error: _Error | None = None
    row_count: int | None = None


@dataclass(frozen=True, slots=True)
class _Shown:
    """What `agent.graph.presentation.shown.Shown.to_dict` gives."""

    headings: list[str]
    kinds: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True, slots=True)
class _Other:
    """The fields of `agent.graph.doubt.judge.OtherReading`."""

    sql: str
    words: str = ""
    confidence: FiniteFloat = 0.0
    votes: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """The fields of `agent.conversation.conversation.Answer`."""

    sql: str | None
    error: _Error | None
    question: str = ""
    dialect: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    truncated: bool = False
    answer: str = ""
    attempts: list[_Attempt] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)
    total_ms: FiniteFloat = 0.0
    plain_total_ms: FiniteFloat | None = None
    continues: int | None = None
    shown: _Shown | None = None
    example: str | None = None
    confidence: FiniteFloat | None = None
    probably_wrong: bool = False
    doubts: list[str] = field(default_factory=list)
    alternatives: list[_Other] = field(default_factory=list)
    votes: int = 0
    features: dict[str, FiniteFloat] = field(default_factory=dict)


_STEP, _ERROR, _ANSWER = TypeAdapter(_Step), TypeAdapter(_Error), TypeAdapter(_Answer)


def check_step(record: Mapping[str, Any]) -> dict[str, Any]:
    """A step's record, with every field. Raises ValueError."""
    return asdict(_STEP.validate_python(record))


def check_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """A query's error, with every field. Raises ValueError."""
    return asdict(_ERROR.validate_python(error))


def check_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer, with every field. Raises ValueError."""
    checked = _ANSWER.validate_python(answer)
    check_rows(checked.columns, checked.rows)
    if checked.shown:
        check_rows(checked.shown.headings, [checked.shown.kinds, *checked.shown.rows])
    return asdict(checked)


def check_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Raise ValueError unless every row has a cell for every column."""
    if any(len(row) != len(columns) for row in rows):
        raise ValueError("a row has more or fewer cells than there are columns")


def check_round(each: Round) -> None:
    """Raise ValueError unless the round's draft is a tree and its figures are ones that can be drawn."""
    nodes = range(len(each.draft_tokens))
    is_tree = len(each.draft_parents) == len(nodes) and all(
        ROOT <= parent < node for node, parent in enumerate(each.draft_parents)
    )
    if not is_tree or not all(node in nodes for node in each.accepted):
        raise ValueError("the draft of a round is no tree")
    if not each.committed or not 0 <= each.free_to_plain <= len(each.committed):
        raise ValueError("a round commits a token at least")
    if not 1 <= each.prompts <= each.batch <= MOST_SEQUENCES:
        raise ValueError("a forward is shared by one sequence at least, and not by that many")
    if not all(map(isfinite, (each.draft_ms, each.target_ms, each.verify_ms, *(each.log_probs or ())))):
        raise ValueError("a time or a probability of a round is no number")
