"""What happens in a conversation, as typed records, and their form in `.jsonl` files.

The graph's nodes emit events, and `Conversation.events` yields them. Everything that shows a conversation, live or from a file,
needs only these records. All conversions between events and lines of a file happen here; no files are opened here, and
`agent.conversation` prepares events to be shown.

A line may come from a stranger's file, so every field, dict and round is checked before it becomes an event: what is read here
can be shown without further checks. Cell values become JSON values.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from math import isfinite
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, TypeAdapter
from pydantic_core import from_json as parsed

from agent.observe.step_record import Note
from decoding.engine.draft import ROOT
from decoding.engine.rounds import Round


@dataclass(frozen=True, slots=True)
class Asked:
    """A turn begins with its question; all events up to the next `Asked` belong to it. `reply`: what the asker chose from what
    the turn before offered, where that is why the question is asked again."""

    question: str
    evidence: str = ""
    database: str = ""
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The question waits while others use the model."""

    step: str
    ahead: int


@dataclass(frozen=True, slots=True)
class Started:
    """A step begins. The same step twice in a row means that it starts over."""

    step: str


@dataclass(frozen=True, slots=True)
class Wrote:
    """A piece was added to the text of a step. `spelling`: the text of every token id in `rounds`."""

    step: str
    text: str
    rounds: tuple[Round, ...] = ()
    spelling: Mapping[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A step has ended. `record`: `agent.observe.step_record.Step` as a dict."""

    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Noted:
    """A node of the graph notes what it used and found."""

    step: str
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Unclear:
    """The asker is asked what is meant: `phrase` of the question may mean any of `options` (label -> the evidence to give for
    it). The turn ends with an `Answered` of the error kind "unclear"; the same question is then asked with that evidence.
    """

    phrase: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn ends with an answer: `agent.conversation.Answer` as a dict. When shown or stored, it may hold fewer
    rows than `row_count`."""

    answer: dict[str, Any]
    row_count: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A turn ends without an answer. `stopped`: the asker stopped it."""

    message: str
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """A person ran SQL by hand in a turn (0 is the first). `error`: `tools.result.QueryError` as a dict."""

    turn: int
    sql: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    row_count: int = 0
    truncated: bool = False
    wall_ms: float = 0.0
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A person judged a turn's answer; None withdraws the judgement."""

    turn: int
    liked: bool | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A step of a turn's answer (0 is its first) was decoded again token by token, and would have taken so long."""

    turn: int
    step: int
    plain_ms: float


Event = Asked | Waiting | Started | Wrote | Finished | Noted | Unclear | Answered | Failed | Ran | Judged | Measured


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
class _NoAnswer(_Error):
    """What an answer has in place of SQL; an unclear question also the evidence to give for each meaning, and the complete
    question to give it with."""

    meanings: dict[str, str] = field(default_factory=dict)
    question: str = ""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The fields of `agent.state.Attempt`."""

    sql: str
    repaired: bool = False
    error: _Error | None = None
    row_count: int | None = None


@dataclass(frozen=True, slots=True)
class _Shown:
    """What `agent.presentation.shown.Shown.to_dict` gives."""

    headings: list[str]
    kinds: list[str]
    rows: list[list[Any]]
    statement: str = ""
    done: str = ""


@dataclass(frozen=True, slots=True)
class _FollowUp:
    label: str
    sql: str


@dataclass(frozen=True, slots=True)
class _Other:
    """The fields of `agent.nodes.assess.OtherReading`."""

    sql: str
    words: str = ""
    confidence: FiniteFloat = 0.0
    votes: int = 0
    differs: str = ""
    result: str = ""


@dataclass(frozen=True, slots=True)
class _Option:
    """The fields of `agent.presentation.done.Option`."""

    label: str
    result: str
    sql: str
    votes: int


@dataclass(frozen=True, slots=True)
class _WhichReading:
    """The fields of `agent.presentation.done.WhichReading`."""

    message: str
    options: list[_Option]


@dataclass(frozen=True, slots=True)
class _Escalation:
    """The fields of `agent.observe.audit.Escalation`."""

    model: str
    answered: bool
    prompt_tokens: int = 0
    new_tokens: int = 0
    wall_ms: FiniteFloat = 0.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """The fields of `agent.conversation.Answer`."""

    sql: str | None
    error: _NoAnswer | None
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
    plans: int = 0
    which_reading: _WhichReading | None = None
    features: dict[str, FiniteFloat] = field(default_factory=dict)
    escalated: _Escalation | None = None
    follow_ups: list[_FollowUp] = field(default_factory=list)  # of the page


_STEP, _ERROR, _ANSWER = TypeAdapter(_Step), TypeAdapter(_Error), TypeAdapter(_Answer)


def check_step(record: Mapping[str, Any]) -> dict[str, Any]:
    """A step's record, with every field. Raises ValueError."""
    return asdict(_STEP.validate_python(record))


def check_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """A query's error, with every field. Raises ValueError."""
    return asdict(_ERROR.validate_python(error))


def check_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer, with every field; `follow_ups` where the page has looked for some. Raises ValueError."""
    checked = _ANSWER.validate_python(answer)
    check_rows(checked.columns, checked.rows)
    if checked.shown:
        check_rows(checked.shown.headings, [checked.shown.kinds, *checked.shown.rows])
    found = _as_given(checked, answer, "follow_ups")
    if checked.error is not None:
        found["error"] = _as_given(checked.error, answer["error"], "meanings", "question")
    return found


def _as_given(checked: _Answer | _NoAnswer, record: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    """The fields of a checked record, without those of the optional ones that were not given."""
    return {name: value for name, value in asdict(checked).items() if name not in optional or name in record}


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


def plain_rows(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """The rows with cells that are None, Booleans, numbers or text."""
    return [[plain_value(cell) for cell in row] for row in rows]


def exact_value(value: Any) -> Any:
    """The value as JSON can say it exactly: numbers as numbers, what is not finite as null, times in ISO's form, bytes in
    hexadecimal digits; lists and dicts item by item.

    >>> exact_value([Decimal("1.50"), float("nan"), b"ab"])
    [1.5, None, '6162']
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return _exact_decimal(value)
    if isinstance(value, Mapping):
        return {str(key): exact_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [exact_value(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return plain_value(value)


def _exact_decimal(value: Decimal) -> int | float | str | None:
    """A number where JSON's readers get the same one, otherwise its digits as text."""
    if not value.is_finite():
        return None
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)


def plain_value(cell: Any) -> Any:
    """Numbers stay numbers where JSON can hold them; everything else becomes text."""
    if isinstance(cell, float | Decimal):
        value = float(cell)
        return value if math.isfinite(value) else None
    if cell is None or isinstance(cell, bool | str):
        return cell
    if isinstance(cell, int):
        return cell if abs(cell) < 2**53 else str(cell)  # larger integers are inexact in JavaScript
    if isinstance(cell, date | datetime | time):
        return cell.isoformat(" ") if isinstance(cell, datetime) else cell.isoformat()
    if isinstance(cell, bytes | bytearray):
        return f"({len(cell):,} bytes)"
    return str(cell)


_KINDS: dict[str, TypeAdapter[Any]] = {kind.__name__.lower(): TypeAdapter(kind) for kind in Event.__args__}


class EventError(ValueError):
    """A line is not an event; the message says why."""


def to_json(event: Event) -> str:
    """The event as one line."""
    body = {"event": type(event).__name__.lower()} | asdict(event)
    return json.dumps(body, ensure_ascii=False, default=str)


def from_json(line: str) -> Event:
    """The event in a line. Raises EventError."""
    try:
        body = parsed(line)
        event: Event = _KINDS[body.pop("event")].validate_python(body)
        return _checked(event)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EventError(f"not an event of a conversation: {line[:60]!r} ({type(error).__name__})") from error


def read_events(lines: Iterator[str]) -> Iterator[Event]:
    """The events in lines that this program stored; damaged lines are left out."""
    for line in lines:
        try:
            yield from_json(line)
        except EventError:
            continue


def _checked(event: Event) -> Event:
    """The event, after checking the parts that its type leaves open. Raises ValueError."""
    match event:
        case Finished():
            return replace(event, record=check_step(event.record))
        case Answered():
            return replace(event, answer=check_answer(event.answer))
        case Measured() if not isfinite(event.plain_ms):
            raise ValueError("a time that is no number")
        case Ran():
            check_rows(event.columns, event.rows)
            return replace(event, error=event.error and check_error(event.error))
        case Wrote():
            for each in event.rounds:
                check_round(each)
    return event
