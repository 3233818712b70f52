"""From events to what the page holds: turns with their steps, and what a person changed in them.

From events to what the page holds: turns with their steps. Live and recorded events are folded alike.

What a person has done after an answer: other SQL in its place, its steps timed with plain decoding.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agent.context import AgentContext
from agent.observe.audit import Trail, run_sql
from agent.observe.events import (
    Answered,
    Asked,
    Event,
    Failed,
    Finished,
    Judged,
    Measured,
    Noted,
    Ran,
    Started,
    Unclear,
    Waiting,
    Wrote,
    plain_rows,
)
from agent.observe.step_record import Note
from agent.race import plain_time_ms
from decoding.engine.rounds import Round
from tools.databases.database import Database
from tools.result import Limits, OpenError, QueryError, Result
from tools.sql.spelling import pretty_sql


@dataclass(slots=True)
class StepView:
    """One step as far as it has come. `record`: its `agent.observe.step_record.Step` as a dict, once it is over."""

    name: str
    text: str = ""
    rounds: list[Round] = field(default_factory=list)
    spelling: dict[int, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    record: dict[str, Any] | None = None
    ahead: int = 0  # others who use the model first


@dataclass(slots=True)
class TurnView:
    """A question and what came of it. `row_count`: rows of the result, of which `answer` may hold fewer. `reply`: what the
    asker chose from what the turn before offered; `before`: that turn."""

    question: str
    evidence: str = ""
    database: str = ""
    reply: str = ""
    steps: list[StepView] = field(default_factory=list)
    unclear: Unclear | None = None  # the asker is asked back; the answer says so too
    answer: dict[str, Any] | None = None
    row_count: int = 0
    failure: Failed | None = None
    liked: bool | None = None
    ran: Ran | None = None  # the newest SQL that was run by hand
    early: dict[str, Any] | None = None  # columns, rows and their number while other readings are still looked at
    before: "TurnView | None" = field(default=None, repr=False, compare=False)

    @property
    def said(self) -> str:
        """What the asker said: the question, or the reply that settles it."""
        return self.reply or self.question

    @property
    def complete(self) -> str:
        """The question; where it went on from one that was asked back, as a complete question."""
        error = (self.answer or {}).get("error") or {}
        return str(error.get("question") or self.question) if self.unclear else self.question

    @property
    def is_over(self) -> bool:
        return self.answer is not None or self.failure is not None

    @property
    def sql(self) -> str:
        """The SQL that stands, else the last that was tried."""
        if self.answer is None:
            return ""
        tried = self.answer["attempts"]
        return str(self.answer["sql"] or (tried[-1]["sql"] if tried else ""))

    @property
    def statement(self) -> str:
        """The SQL that gives the rows as they are shown, over several lines: what people see, run, copy and export."""
        return self._over_lines(((self.answer or {}).get("shown") or {}).get("statement") or self.sql)

    @property
    def laid_out(self) -> str:
        """The SQL that stands, as the model wrote it or a rule made it, over several lines."""
        return self._over_lines(self.sql)

    def _over_lines(self, sql: str) -> str:
        return pretty_sql(sql, self.answer["dialect"]) if self.answer and sql else ""

    @property
    def estimated(self) -> list[int]:
        """The steps, by their places, whose time with plain decoding is estimated and could be measured: each name's last."""
        last = {step.name: place for place, step in enumerate(self.steps)}
        records = {place: self.steps[place].record or {} for place in sorted(last.values()) if self.steps[place].rounds}
        return [place for place, record in records.items() if record.get("plain_ms_source") == "estimated"]

    def tokens_of(self, step: str) -> int:
        """The tokens that the newest step of that name wrote; 0 where they are not known."""
        rounds = next((each.rounds for each in reversed(self.steps) if each.name == step and each.rounds), [])
        return sum(len(r.text_tokens) for r in rounds)

    @property
    def records(self) -> list[dict[str, Any]]:
        return [step.record for step in self.steps if step.record]


OWN_QUERY = -1  # in the place of a turn's number: SQL that a person wrote without a question


class ConversationView:
    """A conversation as it stands; `apply` takes the next event in. `query`: the newest SQL that belongs to no question."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.turns: list[TurnView] = []
        self.query = TurnView("")
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        """Events that belong to no turn, as a damaged file may have them, change nothing."""
        if isinstance(event, Asked):
            before = self.turns[-1] if self.turns else None
            self.turns.append(TurnView(event.question, event.evidence, event.database, event.reply, before=before))
        elif isinstance(event, Judged | Ran | Measured):
            self._afterwards(event)
        elif self.turns:
            _apply(self.turns[-1], event)

    def turn(self, number: int | None) -> TurnView | None:
        """The turn of that number, or what stands for it where it is OWN_QUERY."""
        if number == OWN_QUERY:
            return self.query
        return self.turns[number] if number is not None and 0 <= number < len(self.turns) else None

    def _afterwards(self, event: Judged | Ran | Measured) -> None:
        turn = self.turn(event.turn)
        if turn is None:
            return
        if isinstance(event, Judged):
            turn.liked = event.liked
        elif isinstance(event, Measured):
            _measured(turn, event)
        else:
            turn.ran = event if event.sql else None  # without SQL, back to the answer's own result


def _measured(turn: TurnView, event: Measured) -> None:
    record = turn.steps[event.step].record if 0 <= event.step < len(turn.steps) else None
    if record is not None:
        record |= {"plain_ms": event.plain_ms, "plain_ms_source": "measured"}


def _apply(turn: TurnView, event: Event) -> None:
    match event:
        case Waiting():
            _open_step(turn, event.step).ahead = event.ahead
        case Started():
            step = _open_step(turn, event.step)
            step.text, step.rounds, step.spelling, step.ahead = "", [], {}, 0
        case Wrote():
            step = _open_step(turn, event.step)
            step.text += event.text
            step.rounds += event.rounds
            step.spelling |= event.spelling or {}
        case Finished():
            _open_step(turn, event.record["name"]).record = event.record
        case Noted():
            _last_named(turn, event.step).notes += event.notes
        case Unclear():
            turn.unclear = event
        case Answered():
            turn.answer, turn.row_count, turn.early = event.answer, event.row_count, None
        case Failed():
            turn.failure = event


def _open_step(turn: TurnView, name: str) -> StepView:
    """The step that runs, or a new one."""
    if turn.steps and turn.steps[-1].name == name and turn.steps[-1].record is None:
        return turn.steps[-1]
    turn.steps.append(StepView(name))
    return turn.steps[-1]


def _last_named(turn: TurnView, name: str) -> StepView:
    found = next((step for step in reversed(turn.steps) if step.name == name), None)
    return found or _open_step(turn, name)


STORED_ROWS = 200  # of a result, in the archive and in a shared file
LONGEST_SQL = 256_000  # characters of a statement that is run by hand


def ran_by_hand(
    trail: Trail | None, database: Database, sql: str, limits: Limits, turn: int
) -> tuple[Ran, Result | None]:
    """What running a statement for a turn gave; of one that is too long the SQL is not kept."""
    if len(sql) > LONGEST_SQL:
        return Ran(
            turn, "", error=asdict(QueryError("refused", f"refused: more than {LONGEST_SQL:,} characters"))
        ), None
    outcome = run_sql(trail, database, sql, limits)
    if isinstance(outcome, QueryError):
        return Ran(turn, sql, error=asdict(outcome)), None
    rows = tuple(map(tuple, plain_rows(outcome.rows[:STORED_ROWS])))
    ran = Ran(turn, sql, outcome.columns, rows, len(outcome.rows), outcome.truncated, outcome.wall_ms)
    return ran, outcome


def every_row(trail: Trail | None, database: Database, sql: str, limits: Limits) -> Result:
    """All rows of a query. Raises OpenError."""
    outcome = run_sql(trail, database, sql, limits)
    if isinstance(outcome, QueryError):
        raise OpenError(outcome.message)
    return outcome


def measured(toolbox: AgentContext, turns: Sequence[TurnView]) -> Iterator[Measured]:
    """Time the newest turn's estimated steps with plain decoding. Raises NoRace and Stopped."""
    last = len(turns) - 1
    for place in turns[last].estimated:
        step = turns[last].steps[place]
        wall_ms = (step.record or {})["wall_ms"]
        yield Measured(last, place, plain_time_ms(toolbox, step.name, step.rounds, wall_ms))
