"""What happens in a conversation, as typed records. Everything that shows a conversation, live or from a file, needs only
these.

The graph's nodes emit them, and `Conversation.events` yields them. `agent.observe.event_json` converts them to lines of a
file and back, and `agent.conversation.records` prepares them to be shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.observe.node_notes import Note
from decoding.engine.records.rounds import Round


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
    """A turn ends with an answer: `agent.conversation.conversation.Answer` as a dict. When shown or stored, it may hold fewer
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
