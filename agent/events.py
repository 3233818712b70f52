"""What happens in a conversation, as typed records. Whatever shows one lives from these alone, live or from a file.

`records` makes them from a running question; `to_json` and `from_json` write and read one line of a `.jsonl` file.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from agent.conversation import Again, Conversation
from agent.notes import Note, notes_of
from agent.plain_values import plain_rows
from decoding.chat_model import FastChatModel
from decoding.rounds import Round
from decoding.tokenizer import Tokenizer


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
    """A step is over. `record`: `agent.steps.Step` as a dict."""

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
    """The end of a turn: `agent.conversation.Answer`, whose rows may be cut to `shown` here."""

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
_KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in Event.__args__}


class EventError(ValueError):
    """A line that is no event of ours; the message says why."""


def records(
    conversation: Conversation, question: str, evidence: str = "", shown: int = 1000, again: Again | None = None
) -> Iterator[Event]:
    """Ask, and tell what happens. `shown`: most rows that an `Answered` carries. Raises Stopped."""
    model = conversation.toolbox.model
    tokenizer = model.decoder.tokenizer if isinstance(model, FastChatModel) else None
    yield Asked(question, evidence, conversation.toolbox.database.name)
    for mode, item in conversation.happenings(question, evidence, again):
        if mode == "custom":
            yield _typed(item, tokenizer, shown)
        else:
            yield from (Noted(node, notes) for node, update in item.items() if (notes := notes_of(node, update or {})))


def _typed(item: dict[str, Any], tokenizer: Tokenizer | None, shown: int) -> Event:
    kind, rest = item["event"], {key: value for key, value in item.items() if key != "event"}
    match kind:
        case "start":
            return Started(rest["step"])
        case "waiting":
            return Waiting(**rest)
        case "text":
            rounds = rest["rounds"]
            return Wrote(rest["step"], rest["text"], rounds, spell(tokenizer, rounds) if tokenizer else None)
        case "step":
            return Finished(rest)
        case "unclear":
            return Unclear(**rest)
        case _:
            return Answered(rest | {"rows": plain_rows(rest["rows"][:shown])}, len(rest["rows"]))


def spell(tokenizer: Tokenizer, rounds: Iterable[Round]) -> dict[int, str]:
    """The text of every token id in `rounds`, each on its own."""
    ids = {token for r in rounds for token in (*r.draft_tokens, *r.text_tokens)}
    return {token: tokenizer.decode([token]) for token in sorted(ids)}


def to_json(event: Event) -> str:
    """One line."""
    body = {"event": type(event).__name__.lower()} | asdict(event)
    return json.dumps(body, ensure_ascii=False, default=str)


def from_json(line: str) -> Event:
    """The event of a line. Raises EventError."""
    try:
        body = json.loads(line)
        kind = _KINDS[body.pop("event")]
        known = {field.name for field in fields(kind)}
        values = {key: _read(kind, key, value) for key, value in body.items() if key in known}
        return kind(**values)  # type: ignore[no-any-return]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EventError(f"not an event of a conversation: {line[:60]!r} ({type(error).__name__})") from error


def _read(kind: type[Any], key: str, value: Any) -> Any:
    if key == "rounds":
        return tuple(_read_round(each) for each in value)
    if key == "notes":
        return tuple(Note(**each) for each in value)
    if key == "spelling" and value is not None:
        return {int(token): str(text) for token, text in value.items()}
    if kind is Ran and isinstance(value, list):
        return tuple(tuple(each) if isinstance(each, list) else each for each in value)
    return value


def _read_round(record: Mapping[str, Any]) -> Round:
    """JSON has lists in the place of tuples."""
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in record.items()}
    return Round(**values)
