"""A conversation takes questions and gives events and answers. It owns the thread, its memory and its recall.

It also prepares a question's events to be shown and stored: it adds the text of token ids, and limits the rows.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, cast
from uuid import uuid4

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from agent.candidates import continued_number, turn_of
from agent.context import AgentContext
from agent.follow_ups import without_reset
from agent.graph import RECURSION_LIMIT, build_graph
from agent.nodes.answer import in_words
from agent.observe.audit import FAILURE, NodeFailed, in_one_line, kind_of, traced
from agent.observe.events import Answered, Asked, Event, Noted, Wrote, exact_value, plain_rows
from agent.observe.step_record import notes_of, step_title
from agent.presentation.present import plainly
from agent.presentation.sentence import REPEATED, kind_of_error
from agent.state import OpenQuestion, Reading, State, Turn, opening
from decoding.engine.rounds import Round
from decoding.serving.model_queue import Stopped
from decoding.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Answer:
    """What `sqlagent ask --json` prints; times in milliseconds. `error`: kind and message, or None when SQL ran. An error of
    kind "unclear" asks in its message what is meant; its candidates are the possible meanings, its `meanings` the evidence to
    give for each, and its `question` the complete one, where what was asked goes on from one before. One of kind "unsure" says
    that `AgentOptions.at_least` is not reached, and `alternatives` are what could be answered."""

    question: str
    sql: str | None
    dialect: str
    columns: list[str]
    rows: list[list[Any]]
    truncated: bool
    answer: str
    attempts: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    total_ms: float
    plain_total_ms: float | None  # None when a step's plain time is not known
    error: dict[str, Any] | None
    continues: int | None = None  # number, from 1, of the question that this one follows up
    shown: dict[str, Any] | None = None  # what people see of the rows: headings, kinds of cells, rows
    example: str | None = None  # the question of the stored example whose SQL ran
    confidence: float | None = None  # how often answers like this one are right; None if that is not known
    probably_wrong: bool = False  # whether the confidence is so low that it should be said
    doubts: list[str] = field(default_factory=list)  # what is doubtful, in sentences
    alternatives: list[dict[str, Any]] = field(
        default_factory=list
    )  # `agent.nodes.assess.OtherReading`, likeliest first
    votes: int = 0  # how many of the plans gave these rows, where several were written
    plans: int = 0  # how many were written, and ran
    which_reading: dict[str, Any] | None = None  # `agent.presentation.done.WhichReading`: what tells them apart best
    features: dict[str, float] = field(default_factory=dict)  # what the confidence was computed from
    escalated: dict[str, Any] | None = None  # `agent.observe.audit.Escalation`; None if no larger model was asked

    def to_pandas(self, as_shown: bool = False) -> Any:
        """The rows as a pandas DataFrame; `as_shown`: with the headings, names and other columns that people are shown. Needs
        pandas.
        """
        import pandas

        seen = self.shown if as_shown else None
        columns, rows = (seen["headings"], seen["rows"]) if seen else (self.columns, self.rows)
        cells = {place: _series(pandas, [row[place] for row in rows]) for place in range(len(columns))}
        return pandas.DataFrame(cells).set_axis(list(columns), axis=1)

    def checked(self) -> "Answer":
        """This answer, for measurements, in which a program that failed is no answer. Raises AnswerFailed."""
        if self.error and self.error["kind"] in (FAILURE, "model", "usage"):
            raise AnswerFailed(self.error["message"])
        return self

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(exact_value(self.to_dict()), ensure_ascii=False)


def _series(pandas: Any, cells: list[Any]) -> Any:
    """A column of pandas that keeps whole numbers whole where cells are missing; its own type for them is one of fractions."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds == {int} and None in cells and all(cell is None or -(2**63) <= cell < 2**63 for cell in cells):
        return pandas.Series(cells, dtype="Int64")
    if kinds == {bool} and None in cells:
        return pandas.Series(cells, dtype="boolean")
    return pandas.Series(cells, dtype=object if kinds == {int} and None in cells else None)


_OF_AN_ERROR = ("kind", "message", "name", "position", "candidates")


@dataclass(frozen=True, slots=True)
class Retry:
    """Another try at a question: the reading that the asker wants, the SQL that the asker has refused, or the SQL that the
    asker has chosen among an answer's alternatives.
    """

    reading: Reading | None = None
    refused: tuple[str, ...] = ()
    chosen: str = ""


class AnswerFailed(RuntimeError):
    """The program failed to answer; the message is what its asker is told."""


@dataclass(slots=True)
class _End:
    """How the graph ended: early, before its last node, or with `error`, and where that came from, in words."""

    early: bool = False
    error: Exception | None = None
    where: str = ""

    def failed(self, error: BaseException, where: str) -> None:
        if not isinstance(error, Exception):
            raise error
        self.early, self.error, self.where = True, error, where


class EmptyQuestion(ValueError):
    """There is nothing to answer; the message is one line that says what to do."""


class Conversation:
    """Asks one toolbox's agent under one thread id, so that follow-up questions see the turns before them.

    With a persistent checkpointer, the same `thread` continues after a restart.
    """

    def __init__(
        self, toolbox: AgentContext, checkpointer: BaseCheckpointSaver[Any] | None = None, thread: str | None = None
    ) -> None:
        self.toolbox, self.thread = toolbox, thread or uuid4().hex
        self.turn = threading.Lock()  # for callers with several threads: one question of a conversation at a time
        self._graph = build_graph(checkpointer or InMemorySaver())
        self._config = {"configurable": {"thread_id": self.thread}, "recursion_limit": RECURSION_LIMIT}

    def events(self, question: str, evidence: str = "", again: Retry | None = None) -> Iterator[Event]:
        """Events as they happen, from `Asked` to `Answered`, whatever fails in between: rows that are there stay the answer,
        which then says what it lacks; otherwise its error says what failed. Raises EmptyQuestion, and Stopped once the
        toolbox's stop signal is set.
        """
        if not question.strip():
            raise EmptyQuestion("no question: ask something in words")
        happening = self._events(question, evidence, again or Retry())
        return traced(question, self.toolbox.database, self.thread, happening)

    def _events(self, question: str, evidence: str, again: Retry) -> Iterator[Event]:
        toolbox = self.toolbox
        yield Asked(question, evidence, toolbox.database.name)
        toolbox.begin()
        if toolbox.trail:
            toolbox.trail.asked(question, toolbox.database.name)
        start, end = perf_counter(), _End()
        first = opening(question, evidence, 1, again.reading, again.refused, again.chosen)
        with self._deadline() as late:
            try:
                first["number"] = self._asked() + 1
                yield from self._happening(first)
            except Stopped:
                if not late.is_set():
                    raise
                end.early = True
            except NodeFailed as failed:
                end.failed(failed.__cause__ or failed, f"“{step_title(failed.node)}”")
            except Exception as error:  # such as a disk that is too full for the conversation
                end.failed(error, "keeping the conversation")
        state = self._state(first)
        if end.early:
            state = self._cut_short(state, end)
        answer = self._answer(question, state, 1e3 * (perf_counter() - start))
        if answer.sql is None and end.error:
            answer = self._failed(answer, end)
        elif answer.sql is None and late.is_set():
            answer = self._too_late(answer)
        yield Answered(answer.to_dict(), len(answer.rows))

    def _happening(self, first: dict[str, Any]) -> Iterator[Event]:
        """The events of the graph's nodes."""
        modes = ["custom", "updates"]
        for mode, item in self._graph.stream(first, config=self._config, context=self.toolbox, stream_mode=modes):
            if mode == "custom":
                yield item
            else:
                yield from _noted(item)

    def _state(self, first: dict[str, Any]) -> State:
        """What the graph knows of the question that begins with `first`; no more than that where it cannot be read."""
        try:
            known: State = self._graph.get_state(self._config).values
        except Exception as error:
            self.toolbox.leave_out("What was found cannot be read", error)
            return cast("State", first)
        return known if known.get("number") == first["number"] else cast("State", first)

    def _cut_short(self, state: State, end: "_End") -> State:
        """The state of a question that ended before its last node: with an answer if there are rows, otherwise without SQL."""
        toolbox = self.toolbox
        if state["preview"] is None or toolbox.result is None:
            toolbox.keep(None)
            return state | {"sql": ""}
        if end.error:
            toolbox.leave_out(f"{end.where} failed and was left out", end.error)
        else:
            toolbox.left_out.append(
                f"The time was over after {toolbox.options.deadline_s:g} s, before all was looked at."
            )
        if toolbox.shown is None:
            toolbox.shown = toolbox.optional("present", partial(plainly, toolbox.result), None)
        toolbox.optional("remember", lambda: self._remembered(turn_of(state)), None)
        return state | {"answer": in_words(state, toolbox)}

    def _failed(self, answer: Answer, end: "_End") -> Answer:
        """An answer that says what failed and what to do. What has a message for people is told by that alone."""
        error = end.error or Exception()
        kind, said = kind_of(error), in_one_line(error)
        if kind == FAILURE:
            do = self.toolbox.write_down(error, "ask in other words")
            said = f"There is no answer, for {end.where} failed ({said}): {do}."
        told = {"kind": kind, "message": said, "name": None, "position": None, "candidates": ()}
        return replace(answer, answer=said, error=told)

    @contextmanager
    def _deadline(self) -> Iterator[threading.Event]:
        """Stops the question when its time is over; the event then is set, and the stop signal is clear again at the end."""
        late, seconds = threading.Event(), self.toolbox.options.deadline_s

        def stop() -> None:
            late.set()
            self.toolbox.stop.stop()
            self.toolbox.database.interrupt()

        timer = threading.Timer(seconds, stop) if seconds else None
        if timer:
            timer.daemon = True
            timer.start()
        try:
            yield late
        finally:
            if timer:
                timer.cancel()
            if late.is_set():
                self.toolbox.stop.clear()

    def _too_late(self, answer: Answer) -> Answer:
        told = f"No answer was found within {self.toolbox.options.deadline_s:g} s."
        error = {"kind": "timeout", "message": told, "name": None, "position": None, "candidates": ()}
        return replace(answer, answer=told, error=error)

    def undo(self) -> str | None:
        """Forget the newest answered question, as if it had not been asked; returns it, or None if there is none."""
        values = self._graph.get_state(self._config).values
        turns = values.get("turns") or []
        if not turns:
            return None
        number = turns[-1].get("number") or len(turns)
        update = {"turns": turns[:-1], "open": None, "number": number - 1}
        self._graph.update_state(self._config, update, as_node="answer")
        question: str = turns[-1]["question"]
        return question

    def ask(self, question: str, evidence: str = "", again: Retry | None = None) -> Answer:
        """The answer, without the events."""
        answers = [event.answer for event in self.events(question, evidence, again) if isinstance(event, Answered)]
        return Answer(**answers[-1])

    def remember(self, question: str, sql: str, number: int | None = None, entity: str | None = None) -> None:
        """Add a question that was answered elsewhere to the conversation. `sql` is in the database's dialect; `number` is the
        question's number in the conversation, by default the next; `entity` is what the answer names, if it is one thing.
        """
        number = number or self._asked() + 1
        self._remembered(Turn(question=without_reset(question) or question, sql=sql, number=number, entity=entity))

    def _remembered(self, turn: Turn) -> None:
        """Add a turn, whose number is the newest question's, to the conversation."""
        turns, number = self._graph.get_state(self._config).values.get("turns") or [], turn.get("number")
        update = {"turns": [*turns, turn], "open": None, "number": number}
        self._graph.update_state(self._config, update, as_node="answer")

    def leave_open(self, opened: OpenQuestion) -> None:
        """Add a question that was asked back elsewhere, and is the newest."""
        self._graph.update_state(self._config, {"open": opened, "number": opened["number"]}, as_node="answer")

    def _asked(self) -> int:
        """How many questions the conversation has had."""
        known = self._graph.get_state(self._config).values
        return int(known.get("number") or len(known.get("turns") or ()))

    def _answer(self, question: str, state: State, total_ms: float) -> Answer:
        unsure = bool(state["unsure"])
        result = None if unsure else self.toolbox.result
        plain = [step["plain_ms"] for step in state["steps"]]
        around_ms = total_ms - sum(step["wall_ms"] for step in state["steps"])
        return Answer(
            question=question,
            sql=(state["sql"] or None) if not unsure else None,
            dialect=self.toolbox.database.dialect,
            columns=list(result.columns) if result else [],
            rows=[list(row) for row in result.rows] if result else [],
            truncated=result.truncated if result else False,
            answer=" ".join(filter(None, [state["answer"], *self.toolbox.left_out])),
            attempts=[dict(attempt) for attempt in state["attempts"]],
            steps=state["steps"],
            total_ms=total_ms,
            plain_total_ms=None if None in plain else sum(plain) + around_ms,
            error=None if result or state["told"] else _words_alone(state) or _last_error(state),
            continues=continued_number(state),
            shown=self.toolbox.shown.to_dict() if self.toolbox.shown and not unsure else None,
            example=state.get("example") or None,
            escalated=state.get("escalated"),
            **(state.get("judgement") or {}),
        )


def _noted(updates: Mapping[str, Any]) -> Iterator[Noted]:
    """Events for what the nodes found. `updates`: {node: its update of the state}."""
    return (Noted(node, notes) for node, update in updates.items() if (notes := notes_of(node, update or {})))


def _words_alone(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """The error of a question that is not answered because it is unclear, or the answer not sure enough."""
    kind = "unclear" if state["unclear"] else "unsure" if state["unsure"] else None
    if kind is None:
        return None
    named = {"kind": kind, "message": state["answer"], "candidates": [*state["unclear"]], "meanings": state["unclear"]}
    return dict.fromkeys(_OF_AN_ERROR) | named | {"question": state["question"]}


def _last_error(state: State) -> dict[str, Any]:
    failed = [attempt for attempt in state["attempts"] if attempt["error"]]
    failed = [each for each in failed if (each["error"] or {}).get("message") != REPEATED] or failed
    if not failed:
        return dict.fromkeys(_OF_AN_ERROR) | {"kind": "other", "message": "no SQL was written"}
    last = failed[-1]["error"] or {}
    return {key: last.get(key) for key in _OF_AN_ERROR} | {"kind": kind_of_error(state, failed[-1])}


def records(
    conversation: Conversation, question: str, evidence: str = "", shown: int = 1000, again: Retry | None = None
) -> Iterator[Event]:
    """Ask the question and yield its events. `shown`: most rows that an `Answered` carries. Raises Stopped."""
    local = conversation.toolbox.local
    tokenizer = local.decoder.tokenizer if local else None
    for event in conversation.events(question, evidence, again):
        if isinstance(event, Wrote) and tokenizer:
            yield replace(event, spelling=spell(tokenizer, event.rounds))
        elif isinstance(event, Answered):
            yield replace(event, answer=event.answer | _plain(event.answer, shown))
        else:
            yield event


def _plain(answer: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The rows of an answer, its own and those shown, as JSON can hold them."""
    seen = answer["shown"]
    cut = seen and seen | {"rows": plain_rows(seen["rows"][:most])}
    return {"rows": plain_rows(answer["rows"][:most]), "shown": cut}


def spell(tokenizer: Tokenizer, rounds: Iterable[Round]) -> dict[int, str]:
    """Maps every token id in `rounds` to its text; ids beyond the vocabulary are mask tokens."""
    ids = {token for r in rounds for token in (*r.draft_tokens, *r.text_tokens)}
    return {token: tokenizer.decode([token]) if token < tokenizer.size else "<mask>" for token in sorted(ids)}
