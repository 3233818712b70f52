"""What happens in a conversation, as typed records. Whatever shows one lives from these alone, live or from a file.

The graph's nodes emit them, and `Conversation.events` yields them. `agent.observe.event_json` writes and reads them as lines
of a file, `agent.conversation.records` makes them ready to be shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.observe.node_notes import Note
from decoding.engine.records.rounds import Round


@dataclass(frozen=True, slots=True)
class Asked:
    """A question begins a turn; all events up to the next `Asked` belong to it."""

    question: str
    evidence: str = ""
    database: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Others use the model first."""

    step: str
    ahead: int


@dataclass(frozen=True, slots=True)
class Started:
    """A step begins; the same step again right away means that it starts anew."""

    step: str


@dataclass(frozen=True, slots=True)
class Wrote:
    """What one forward added to the text of a step. `spelling`: the text of every token id in `rounds`."""

    step: str
    text: str
    rounds: tuple[Round, ...] = ()
    spelling: Mapping[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A step is over. `record`: `agent.observe.step_record.Step` as a dict."""

    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Noted:
    """What a node of the graph took and found."""

    step: str
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Unclear:
    """The asker is asked back: `phrase` of the question may mean any of `options` (what it is called -> the evidence that it
    makes). The turn ends with an `Answered` of the error kind "unclear"; the choice is asked as evidence of the same question.
    """

    phrase: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answered:
    """The end of a turn: `agent.conversation.conversation.Answer` as a dict. Where it is shown or kept, it may hold fewer
    rows than `row_count`."""

    answer: dict[str, Any]
    row_count: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a turn without an answer; `stopped`: because the asker wanted it so."""

    message: str
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """SQL that a person ran by hand in a turn (0 is the first). `error`: `tools.result.QueryError` as a dict."""

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
    """What a person thinks of a turn's answer; None takes it back."""

    turn: int
    liked: bool | None


Event = Asked | Waiting | Started | Wrote | Finished | Noted | Unclear | Answered | Failed | Ran | Judged
