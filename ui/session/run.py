"""A question that is being answered. A run holds the conversation and the data that it began with, and writes only there,
whatever the page shows meanwhile; it goes on when the page is gone.

What to ask next about an answer.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import monotonic
from typing import Any

from sqlglot import exp

from agent.candidates import entity_of
from agent.context import AgentContext, StopSignal
from agent.conversation import Conversation, Retry, records
from agent.follow_ups import without_reset
from agent.observe.audit import Trail, run_sql
from agent.observe.events import Answered, Asked, Event, Failed, plain_rows
from agent.state import OpenQuestion, Reading
from decoding.engine.target import PromptTooLong
from decoding.errors import ModelError
from decoding.serving.model_queue import Stopped
from tools.databases.database import Database
from tools.result import Limits, OpenError, Result
from tools.sql.scope import parse_or_nothing
from ui.session.conversation_view import STORED_ROWS, TurnView
from ui.session.kept import KeptConversation
from ui.session.services import Services, Settings

REMEMBERED_TURNS = 6
EARLY_ROWS = 20  # of a result whose answer is not yet written
SORRY = "Something went wrong here; it is not your question's fault."
INTERRUPT_S = 0.1
STOPPED, OTHER_DATA = "Stopped.", "Stopped, because other data were opened."


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `again`: the turn whose question is tried once more; its SQL does not come back. `ask_back`: unless the
    settings forbid it. `reading`: as it is meant. `chosen`: the SQL of the alternative that the asker took. `reply`: what was
    clicked, in words."""

    text: str
    evidence: str = ""
    again: int | None = None
    ask_back: bool = True
    reading: Reading | None = None
    chosen: str = ""
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a question is answered with, as it was when the run began. `is_example`: whether the database is the one that the
    server began with, which its knowledge is about."""

    services: Services
    settings: Settings
    database: Database
    is_example: bool
    trail: Trail | None


class Run:
    """The answering of one question, in a thread of its own. Its conversation must be occupied, and is free afterwards.

    `interrupt` ends the queries that run on the data; `at_end` is called before those are told who wait for the end.
    """

    def __init__(
        self,
        kept: KeptConversation,
        question: Question,
        grounds: Grounds,
        interrupt: Callable[["Run"], None],
        at_end: Callable[["Run"], None],
    ) -> None:
        self.kept, self.grounds, self._question = kept, grounds, question
        self._interrupt, self._at_end = interrupt, at_end
        self._before = tuple(kept.view.turns)
        self._signal, self._why = StopSignal(), STOPPED
        self._events: list[Event] = []
        self._changed, self._over = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="run", daemon=True)
        seconds = grounds.services.rules.question_s
        self._late = threading.Timer(seconds, self.stop, [f"Stopped: a question may take {seconds:g} s here."])
        self._late.daemon = True

    def begin(self) -> None:
        """The question stands in the conversation when this returns. A program that is killed has kept it."""
        asked = Asked(self._question.text, self._question.evidence, self.grounds.database.name, self._question.reply)
        self._happens(asked)
        self.kept.store([asked])
        try:
            self._late.start()
            self._thread.start()
        except RuntimeError as error:  # no room for a thread
            self._happens(self._failed(error))
            self._end()

    def stop(self, why: str = STOPPED) -> None:
        """Stop decoder and query; the run ends soon after, and says why."""
        if self.is_ending:
            return
        self._why = why
        self._signal.stop()
        threading.Thread(target=self._interrupt_until_over, name="stop", daemon=True).start()

    @property
    def is_ending(self) -> bool:
        """Whether it was stopped, or is over."""
        return self._signal.is_set()

    def _interrupt_until_over(self) -> None:
        """Again and again, for between two nodes the next query may just be about to begin."""
        while not self._over:
            self._interrupt(self)
            self.join(INTERRUPT_S)

    def join(self, seconds: float) -> None:
        """Wait for the end, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._over, seconds)

    def after(self, seen: int, seconds: float) -> int:
        """How many events there were, once there are more than `seen`, or the run or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or len(self._events) > seen, seconds)
            return len(self._events)

    def events(self) -> Iterator[Event]:
        """All events, as they come."""
        seen = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or len(self._events) > seen)  # noqa: B023
                new = self._events[seen:]
            if not new:
                return
            yield from new
            seen += len(new)

    def _happens(self, event: Event) -> None:
        self.kept.view.apply(event)
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            for event in self._answer():
                if not isinstance(event, Asked):  # it stands there already
                    self._happens(event)
        except Exception as error:  # whatever it is, the turn ends with a sentence
            self._happens(self._failed(error))
        finally:
            self._end()

    def _failed(self, error: Exception) -> Failed:
        if self._signal.is_set() or isinstance(error, Stopped):
            return Failed(self._why, stopped=True)
        if isinstance(error, ModelError | OpenError | PromptTooLong | ValueError):
            return Failed(f"{error}")
        traceback.print_exception(error, file=sys.stderr)
        return Failed(f"{SORRY}\n{type(error).__name__}: {error}")

    def _end(self) -> None:
        self._late.cancel()
        try:
            self.kept.store(self._events[1:])
        except Exception as error:
            self.kept.trouble = f"this answer is not kept ({error})"
            traceback.print_exception(error, file=sys.stderr)
        self._signal.stop()
        self.kept.run = None
        self.kept.busy.release()
        self._at_end(self)
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self.grounds.services.run_ended()

    def _answer(self) -> Iterator[Event]:
        asked = self._question
        retry = None if asked.again is None else retry_of(self._before, asked.again)
        toolbox = self._toolbox(retry)
        conversation = Conversation(toolbox)
        remember(conversation, retry.before if retry else self._before)
        again = retry.again if retry else Retry(reading=asked.reading, chosen=asked.chosen)
        for event in records(conversation, asked.text, asked.evidence, STORED_ROWS, again):
            if isinstance(event, Answered):
                if event.answer["error"] is not None:
                    self._signal.check()  # what the stop has broken is no answer
                event = replace(
                    event,
                    answer=event.answer
                    | {"follow_ups": follow_ups(event.answer, toolbox.database, self.grounds.trail)},
                )
            else:
                self._show_early(toolbox)
            yield event
        if toolbox.result is not None:
            self.kept.whole_rows = {len(self._before): (toolbox.shown or toolbox.result).rows}

    def _show_early(self, toolbox: AgentContext) -> None:
        """Rows are shown when the query has run, while other readings are still looked at."""
        turn, result = self.kept.view.turns[len(self._before)], toolbox.result
        if result is not None and not turn.is_over:
            turn.early = {
                "columns": result.columns,
                "rows": plain_rows(result.rows[:EARLY_ROWS]),
                "count": len(result.rows),
            }

    def _toolbox(self, retry: "RetriedTurn | None") -> AgentContext:
        grounds, settings = self.grounds, self.grounds.settings
        settings = replace(settings, clarify=settings.clarify and self._question.ask_back and retry is None)
        if retry and retry.sampled:
            settings = replace(settings, temperature=max(settings.temperature, 0.7), seed=len(self._before))
        toolbox = grounds.services.toolbox(settings, grounds.database)
        toolbox.stop, toolbox.recall, toolbox.trail = self._signal, self.kept.recall, grounds.trail
        if grounds.is_example:
            toolbox.options = replace(toolbox.options, knowledge=grounds.services.knowledge)
        self.kept.toolbox = toolbox
        return toolbox


@dataclass(frozen=True, slots=True)
class RetriedTurn:
    """Another try at a question. `before`: the turns that it may lean on. `sampled`: both readings were tried already."""

    before: Sequence[TurnView]
    again: Retry
    sampled: bool


def remember(conversation: Conversation, turns: Sequence[TurnView]) -> None:
    """Tell a conversation that begins what was asked before."""
    for number, turn in remembered(turns):
        answer = turn.answer or {}
        conversation.remember(turn.question, turn.sql, number, entity_of(answer.get("rows", ()), turn.row_count))
    if opened := _open(turns):
        conversation.leave_open(opened)


def _open(turns: Sequence[TurnView]) -> OpenQuestion | None:
    """The newest question, if it was asked back; one that was stopped, or no question, is passed over."""
    for number, turn in reversed([*enumerate(turns, 1)]):
        if turn.unclear and turn.answer:
            phrase, options = turn.unclear.phrase, dict(turn.unclear.options)
            return OpenQuestion(
                said=turn.question, question=turn.complete, number=number, phrase=phrase, options=options
            )
        is_said = turn.answer is not None and (turn.sql or turn.answer["error"])
        if is_said or without_reset(turn.question) is not None:
            return None
    return None


def remembered(turns: Sequence[TurnView]) -> list[tuple[int, TurnView]]:
    """The newest answered turns since the person last started over, each with its number in the conversation, from 1."""
    starts = [place for place, turn in enumerate(turns) if without_reset(turn.question) is not None]
    since = starts[-1] if starts else 0
    answered = [(place + 1, turn) for place, turn in enumerate(turns) if place >= since and _is_answered(turn)]
    return answered[-REMEMBERED_TURNS:]


def retry_of(turns: Sequence[TurnView], place: int) -> RetriedTurn:
    """Try the turn at `place` again: as before where no try has come to an answer; else in the other reading first, and by
    sampling once both were seen; never with the same SQL."""
    asked = turns[place]
    tries = [turn for turn in turns if (turn.question, turn.evidence) == (asked.question, asked.evidence)]
    before = [turn for turn in turns[:place] if not any(turn is each for each in tries)]
    if all(turn.answer is None for turn in tries):
        return RetriedTurn(before, Retry(), sampled=False)
    readings = {_reading(turn) for turn in tries}
    left: list[Reading] = [each for each in ("standalone", "follow_up") if each not in readings]
    other = left[0] if left and remembered(before) else None
    refused = tuple(dict.fromkeys(turn.sql for turn in tries if turn.sql))
    return RetriedTurn(before, Retry(other or _reading(tries[0]), refused), sampled=other is None)


def _reading(turn: TurnView) -> Reading:
    return "follow_up" if turn.answer and turn.answer.get("continues") else "standalone"


def _is_answered(turn: TurnView) -> bool:
    return turn.answer is not None and turn.answer["error"] is None and bool(turn.sql)


MOST_FOLLOW_UPS, MOST_TRIED = 3, 8
TOGETHER_S, EACH_S = 0.5, 0.3  # that looking for them may take
FEW = 20  # groups that a person reads
Further = tuple[str, exp.Select]  # how it is called, and its SQL


def follow_ups(answer: Mapping[str, Any], database: Database, trail: Trail | None) -> list[dict[str, str]]:
    """{label, sql} of what to ask next about an answer: changes to its own SQL that hold for any query, each offered only if
    it was run and gave other rows. No model is asked."""
    parsed = parse_or_nothing(answer["sql"] or "", database.dialect)
    if answer["error"] or len(parsed) != 1 or not isinstance(query := parsed[0], exp.Select) or not answer["rows"]:
        return []
    late, found = monotonic() + TOGETHER_S, list[dict[str, str]]()
    for label, other in islice(_others(query, database, len(answer["rows"])), MOST_TRIED):
        if monotonic() > late or len(found) == MOST_FOLLOW_UPS:
            break
        sql = other.sql(database.dialect)
        result = run_sql(trail, database, sql, Limits(deadline_s=EACH_S, max_rows=200))
        if isinstance(result, Result) and _says_more(result, answer, by_groups=label.startswith("For each ")):
            found.append({"label": label, "sql": sql})
    return found


def _says_more(result: Result, answer: Mapping[str, Any], by_groups: bool) -> bool:
    rows = [list(row) for row in result.rows]
    if by_groups and not (1 < len(rows) <= FEW and all(row[0] is not None for row in rows)):
        return False
    return bool(rows) and rows != [list(row) for row in answer["rows"]]


def _others(query: exp.Select, database: Database, rows: int) -> Iterator[Further]:
    if query.args.get("limit"):
        yield from _unlimited(query)
    elif query.args.get("group"):
        yield from _grouped(query, rows)
    elif rows == 1:
        yield from _by_groups(query, database)


def _unlimited(query: exp.Select) -> Iterator[Further]:
    """The other end of a list that was cut off, and all of it."""
    order = query.args.get("order")
    if order is not None and query.args.get("offset") is None:
        other = query.copy()
        for key in other.args["order"].expressions:
            if isinstance(key, exp.Ordered):
                key.set("desc", not key.args.get("desc"))
                key.set("nulls_first", False)
        yield "The other end of the list", other
    whole = query.copy()
    whole.set("limit", None)
    yield "All of them", whole


def _grouped(query: exp.Select, rows: int) -> Iterator[Further]:
    """Shares of the whole, and those that lead."""
    sums = [each for each in query.expressions if isinstance(each.unalias(), exp.Count | exp.Sum)]
    if len(sums) != 1 or query.args.get("distinct"):
        return
    amount = sums[0].unalias()
    if not (isinstance(amount, exp.Count) and isinstance(amount.this, exp.Distinct)):
        share = exp.Round(
            this=exp.Div(this=exp.Mul(this=exp.Literal.number("100.0"), expression=amount.copy()),
                         expression=exp.Window(this=exp.Sum(this=amount.copy()))),
            decimals=exp.Literal.number(1),
        )  # fmt: skip
        yield "As shares of the whole", query.copy().select(exp.alias_(share, "percent"))
    if rows > 5:
        first = query.copy().order_by(exp.Ordered(this=amount.copy(), desc=True, nulls_first=False), append=False)
        yield "Only the first five", first.limit(5)


def _by_groups(query: exp.Select, database: Database) -> Iterator[Further]:
    """One number of one table, for each value of a column of words."""
    source = query.args.get("from_") or query.args.get("from")
    if source is None or query.args.get("joins") or len(query.expressions) != 1:
        return
    amount, table = query.expressions[0].unalias(), source.this
    known = database.schema().table(table.name) if isinstance(table, exp.Table) else None
    if known is None or not isinstance(amount, exp.AggFunc):
        return
    for column in known.columns:
        if any(word in column.type.upper() for word in ("CHAR", "TEXT", "STRING")):
            named = exp.column(column.name, table=table.alias_or_name, quoted=True)
            other = query.copy().select(named, append=False).select(query.expressions[0].copy())
            ordered = exp.Ordered(this=amount.copy(), desc=True, nulls_first=False)
            yield f"For each {column.name.replace('_', ' ')}", other.group_by(named.copy()).order_by(ordered)
