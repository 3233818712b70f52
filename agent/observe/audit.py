"""What is kept of questions beyond their answers: the audit log, failures, and traces for OpenTelemetry.

The audit log has an entry without SQL for each question and an entry for each statement, which is written as "running" before
the statement runs and completed afterwards; an entry that stays "running" belongs to a program that was killed. Only this user
can read the log, and the rows of results are never written to it.

People are never shown a traceback. It is written to the audit log as an entry of its own (`Trail.failed`), and to Python's
logger `sqlagent`, which prints nothing unless the host program wants it.

OpenTelemetry's own environment variables switch traces on; without them, none of its packages is imported. Spans are made from
the events and outcomes that the agent reports anyway. Questions and SQL are included only if
OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT allows it; rows never are. Names:
https://opentelemetry.io/docs/specs/semconv/gen-ai/ and .../database/; what these lack is called `sqlagent.*`.
"""

import json
import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from time import time, time_ns
from traceback import format_exception
from typing import TYPE_CHECKING, Any, get_args

from agent.observe.events import Answered, Event, Finished
from decoding.checkpoints.cache_folder import private_file
from decoding.engine.method import UnknownMethod
from decoding.engine.target import PromptTooLong
from decoding.errors import ModelError, is_want_of_memory, pip_install
from decoding.serving.model_queue import QueueFull
from tools.databases.database import Database
from tools.result import Limits, OpenError, QueryError, Result, without_passwords

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer


FAILURE = "failure"
"""The kind of an error that nobody expected; that of a model is "model", of a database "connection", of options "usage"."""
LONGEST = 300  # characters of an exception's message that people are shown
_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (ModelError, "model"),
    (QueueFull, "model"),
    (OpenError, "connection"),
    (PromptTooLong, "usage"),
    (UnknownMethod, "usage"),
)

OPTIONAL_STEPS = {
    "rewrite": "writing the doubtful plan again",
    "choose": "choosing a reading",
    "translate": "translating the SQL between dialects",
    "repair": "repairing the SQL",
    "confidence": "saying how sure the answer is",
    "readings": "looking for other readings",
    "escalate": "asking the larger model",
    "present": "presenting the rows",
    "sentence": "putting the answer into words",
    "remember": "remembering the question for follow-ups",
}
"""Steps without which there is an answer all the same (`AgentContext.optional`), in words for people."""

logger = logging.getLogger("sqlagent")
logger.addHandler(logging.NullHandler())  # otherwise Python prints errors on stderr


class NodeFailed(Exception):
    """A node of the graph raised the exception that is this one's cause; `node` is its name."""

    def __init__(self, node: str) -> None:
        super().__init__(f"the node {node} failed")
        self.node = node


def kind_of(error: BaseException) -> str:
    """The kind of an answer's error that an exception makes."""
    if any(each.__module__.partition(".")[0] == "openai" for each in type(error).__mro__):
        return "model"
    return next((kind for known, kind in _KINDS if isinstance(error, known)), FAILURE)


def in_one_line(error: BaseException) -> str:
    """The exception's message as one line without passwords; with its type, where its message is not made for people."""
    said = without_passwords(" ".join(str(error).split()))
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]} …"
    if is_want_of_memory(error):
        return f"there is not enough memory ({said or 'no more is given'})"
    if kind_of(error) != FAILURE:
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def with_traceback(error: BaseException) -> str:
    """One line and the traceback, for the log."""
    return f"{in_one_line(error)}\n{without_passwords(''.join(format_exception(error)))}"


NAME = "sqlagent"
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_SYSTEMS = {"postgres": "postgresql", "tsql": "microsoft.sql_server", "oracle": "oracle.db"}
_OF_A_STEP = {  # attribute -> field of `agent.observe.step_record.Step`
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.usage.output_tokens": "new_tokens",
    "sqlagent.decoder": "decoder",
    "sqlagent.target_forwards": "target_forwards",
    "sqlagent.plain_forwards": "plain_forwards",
    "sqlagent.tokens_per_forward": "tokens_per_forward",
    "sqlagent.forced_tokens": "forced_tokens",
}


def traced(question: str, database: Database, conversation: str, events: Iterator[Event]) -> Iterator[Event]:
    """The same events of a question, with a span around all of them and a child span for each step."""
    tracer = _tracer()
    return events if tracer is None else _traced(tracer, question, database, conversation, events)


@contextmanager
def statement(database: Database, sql: str) -> Iterator[Callable[[Result | QueryError], None]]:
    """A span around a statement that runs. Gives a function that the caller must call with the outcome."""
    tracer = _tracer()
    if tracer is None:
        yield lambda outcome: None
        return
    from opentelemetry.trace import SpanKind

    system = _SYSTEMS.get(database.dialect, database.dialect)
    attributes = {"db.system.name": system, "db.namespace": database.name} | _content({"db.query.text": sql})
    with tracer.start_as_current_span(f"query {database.name}", kind=SpanKind.CLIENT, attributes=attributes) as span:
        yield lambda outcome: _ran(span, outcome)


@lru_cache(maxsize=1)
def _tracer() -> "Tracer | None":
    """The tracer; None if the environment does not ask for traces, or OpenTelemetry is not installed."""
    if not _wanted():
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        print(f"sqlagent: no traces are sent: {pip_install('telemetry')}", file=sys.stderr)
        return None
    try:
        provider = trace.get_tracer_provider()  # the host program's, if it has set one up
        if not isinstance(provider, TracerProvider):
            named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", NAME)}
            provider = TracerProvider(resource=Resource.create(named))
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return provider.get_tracer(NAME)
    except Exception as error:  # such as a variable of OpenTelemetry's that is no number
        print(f"sqlagent: no traces are sent: {error}", file=sys.stderr)
        return None


def _wanted() -> bool:
    given = {name: os.environ.get(name, "").strip().lower() for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER")}
    if given["OTEL_SDK_DISABLED"] == "true":
        return False
    exporter = given["OTEL_TRACES_EXPORTER"] or "otlp"
    return exporter == "otlp" and any(map(os.environ.get, (*_ENDPOINTS, "OTEL_TRACES_EXPORTER")))


def _content(attributes: dict[str, str]) -> dict[str, str]:
    """The attributes, which hold what people wrote, if the environment allows it. Replaces lone surrogates, which the
    protocol cannot carry.
    """
    allowed = os.environ.get(_CAPTURE, "").strip().lower() in ("true", "span_only", "span_and_event")
    return {key: value.encode(errors="replace").decode() for key, value in attributes.items() if allowed}


def _traced(
    tracer: "Tracer", question: str, database: Database, conversation: str, events: Iterator[Event]
) -> Iterator[Event]:
    from opentelemetry.trace import StatusCode, set_span_in_context

    said = json.dumps([{"role": "user", "parts": [{"type": "text", "content": question}]}], ensure_ascii=False)
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": NAME,
        "gen_ai.agent.name": NAME,
        "gen_ai.conversation.id": conversation,
        "db.namespace": database.name,
    }
    span = tracer.start_span(f"invoke_agent {NAME}", attributes=attributes | _content({"gen_ai.input.messages": said}))
    inside = set_span_in_context(span)
    try:
        for event in _within(inside, events):
            if isinstance(event, Finished):
                _step(tracer, inside, event.record)
            elif isinstance(event, Answered):
                _answered(span, event)
            yield event
    except Exception as error:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(StatusCode.ERROR)
        raise
    finally:
        span.end()


def _within(context: "Context", events: Iterator[Event]) -> Iterator[Event]:
    """The same events, with `context` attached while each is computed and the caller's context in between."""
    from opentelemetry.context import attach, detach

    while True:
        token = attach(context)
        try:
            event = next(events)
        except StopIteration:
            return
        finally:
            detach(token)
        yield event


def _step(tracer: "Tracer", inside: "Context", step: dict[str, Any]) -> None:
    """Write the span of a finished step: a chat if it has a model, otherwise a tool call."""
    from agent.prompts.profiles import ModelStep

    ended_ns = time_ns()
    has_model = step["name"] in get_args(ModelStep)
    operation = "chat" if has_model else "execute_tool"
    attributes = {"gen_ai.operation.name": operation, "sqlagent.step": step["name"]}
    if has_model:
        known = {key: step[field] for key, field in _OF_A_STEP.items() if step[field] is not None}
        attributes |= {"gen_ai.provider.name": NAME} | known
    else:
        attributes["gen_ai.tool.name"] = step["name"]
    began_ns = ended_ns - int(step["wall_ms"] * 1e6)
    tracer.start_span(f"{operation} {step['name']}", inside, attributes=attributes, start_time=began_ns).end(ended_ns)


def _answered(span: "Span", answered: Answered) -> None:
    answer = answered.answer
    span.set_attribute("db.response.returned_rows", answered.row_count)
    span.set_attributes(_content({"db.query.text": answer["sql"] or ""}))
    if answer["error"]:
        span.set_attribute("error.type", answer["error"]["kind"])


def _ran(span: "Span", outcome: Result | QueryError) -> None:
    from opentelemetry.trace import StatusCode

    if isinstance(outcome, QueryError):
        span.set_attribute("error.type", outcome.kind)
        span.set_status(StatusCode.ERROR)
    else:
        span.set_attribute("db.response.returned_rows", len(outcome.rows))


ASKED, RUNNING, OK, ESCALATED = "asked", "running", "ok", "escalated"
LONGEST_TEXT = 64 << 10
"""Characters that a question, statement or message has in the log at most: it should not fill the disk."""
_TABLE = """
CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, at_s REAL NOT NULL, who TEXT NOT NULL, way TEXT NOT NULL,
    source TEXT NOT NULL, question TEXT NOT NULL, sql TEXT, outcome TEXT NOT NULL, message TEXT NOT NULL, row_count INTEGER,
    wall_ms REAL);
CREATE INDEX IF NOT EXISTS by_time ON entries (at_s);
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log. `way`: ask, chat, sql, ui, ...; `source`: the database's name; `at_s`: seconds since 1970.

    `outcome`: asked, running, ok, the kind of a `tools.result.QueryError`, escalated, whose message is an `Escalation` as JSON,
    or failure, whose message is a line and the traceback of what failed unexpectedly. `sql` is None for a question itself, for
    its escalation and for a failure.
    """

    id: int
    at_s: float
    who: str
    way: str
    source: str
    question: str
    sql: str | None
    outcome: str
    message: str
    row_count: int | None
    wall_ms: float | None


@dataclass(frozen=True, slots=True)
class Escalation:
    """A question that was put to a larger model: whether its answer was taken, the tokens that it read and wrote, and the
    milliseconds from asking it to its rows."""

    model: str
    answered: bool
    prompt_tokens: int
    new_tokens: int
    wall_ms: float

    def in_words(self) -> str:
        """One line for people."""
        did = "answered" if self.answered else "gave no answer"
        tokens = f"{self.prompt_tokens:,} tokens read, {self.new_tokens:,} written"
        return f"{self.model} {did}: {tokens}, {self.wall_ms / 1e3:.1f} s"


@dataclass(frozen=True, slots=True)
class Costs:
    """What a larger model cost in all: the questions that it was asked and answered, its tokens and its time."""

    asked: int = 0
    answered: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    wall_ms: float = 0.0

    def plus(self, one: Escalation) -> "Costs":
        """With one more question."""
        return Costs(
            self.asked + 1,
            self.answered + one.answered,
            self.prompt_tokens + one.prompt_tokens,
            self.new_tokens + one.new_tokens,
            self.wall_ms + one.wall_ms,
        )


@dataclass(frozen=True, slots=True)
class Shares:
    """How many questions were asked, how many of them stayed with the model that answers by itself, and what each larger model
    did."""

    questions: int
    own: int
    larger: Mapping[str, Costs]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of entries: by asker, by outcome, by time (seconds since 1970), by a text in question, SQL or message."""

    who: str = ""
    outcome: str = ""
    text: str = ""
    since_s: float = 0.0


class AuditLog:
    """Owns the file. Thread-safe, and safe while other programs write to the same file."""

    def __init__(self, path: Path) -> None:
        """Open or create the log. Raises sqlite3.Error, OSError."""
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            private_file(path), check_same_thread=False, isolation_level=None, timeout=10
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_TABLE)
        self._has_warned = False

    def write(self, entry: Entry) -> int:
        """Append an entry, ignoring its id; returns its new id, 0 if the log cannot be written."""
        marks = ", ".join("?" for _ in fields(Entry))
        return self._do(f"INSERT INTO entries VALUES ({marks})", (None, *map(_writable, astuple(entry)[1:])))

    def complete(self, entry: Entry) -> None:
        """Store the outcome of a statement that was written as running."""
        change = "UPDATE entries SET outcome = ?, message = ?, row_count = ?, wall_ms = ? WHERE id = ?"
        self._do(change, (entry.outcome, _writable(entry.message), entry.row_count, entry.wall_ms, entry.id))

    def entries(self, wanted: Wanted, after: int = 0, most: int = -1) -> Iterator[Entry]:
        """The newest `most` entries with ids above `after`, oldest first. A negative `most` means all."""
        query = """SELECT * FROM (SELECT * FROM entries WHERE id > ? AND at_s >= ? AND (? = '' OR who = ?)
            AND (? = '' OR outcome = ?) AND (? = '' OR instr(lower(question || ' ' || coalesce(sql, '') || ' ' || message),
            lower(?)) > 0) ORDER BY id DESC LIMIT ?) ORDER BY id"""
        pairs = [each for value in (wanted.who, wanted.outcome, wanted.text) for each in (value, value)]
        with self._lock:
            rows = self._connection.execute(query, (after, wanted.since_s, *pairs, most)).fetchall()
        yield from (Entry(*row) for row in rows)

    def shares(self, wanted: Wanted) -> "Shares":
        """Who answered the questions of the log. A question that no larger model answered counts as the own model's."""
        questions, larger = 0, dict[str, Costs]()
        for entry in self.entries(wanted):
            questions += entry.outcome == ASKED
            if entry.outcome == ESCALATED:
                one = Escalation(**json.loads(entry.message))
                larger[one.model] = larger.get(one.model, Costs()).plus(one)
        return Shares(questions, questions - sum(each.answered for each in larger.values()), larger)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _do(self, statement: str, values: tuple[object, ...]) -> int:
        """Execute a statement; returns the id of the last row. Warns once if the log cannot be written, but does not raise,
        so that answering goes on.
        """
        try:
            with self._lock:
                return self._connection.execute(statement, values).lastrowid or 0
        except Exception as error:
            if not self._has_warned:
                print(f"sqlagent: the log cannot be written ({error}); answering goes on without it", file=sys.stderr)
            self._has_warned = True
            return 0


@dataclass(slots=True)
class Trail:
    """Writes to the log what one asker does."""

    log: AuditLog
    who: str
    way: str
    question: str = ""

    def asked(self, question: str, source: str) -> None:
        """Write a question; the statements that follow belong to it."""
        self.question = question
        self.log.write(self._entry(source, None, ASKED))

    def run(self, database: Database, sql: str, limits: Limits) -> Result | QueryError:
        """Execute, writing an entry before and completing it afterwards."""
        entry = self._entry(database.name, sql, RUNNING)
        entry = replace(entry, id=self.log.write(entry))
        outcome = database.execute(sql, limits)
        if isinstance(outcome, QueryError):
            entry = replace(entry, outcome=outcome.kind, message=outcome.message)
        else:
            settled = f"ties settled by {', '.join(outcome.tie_keys)}" if outcome.tie_keys else ""
            entry = replace(entry, outcome=OK, message=settled, row_count=len(outcome.rows), wall_ms=outcome.wall_ms)
        self.log.complete(entry)
        return outcome

    def turned_down(self, database: Database, sql: str, error: QueryError) -> None:
        """Write a statement that was not run."""
        self.log.write(replace(self._entry(database.name, sql, error.kind), message=error.message))

    def escalated(self, source: str, escalation: Escalation) -> None:
        """Write that a larger model was asked, and what that cost."""
        said = json.dumps(asdict(escalation), ensure_ascii=False)
        self.log.write(replace(self._entry(source, None, ESCALATED), message=said, wall_ms=escalation.wall_ms))

    def failed(self, source: str, error: BaseException) -> None:
        """Write what failed unexpectedly, with its traceback."""
        self.log.write(replace(self._entry(source, None, FAILURE), message=with_traceback(error)))

    def _entry(self, source: str, sql: str | None, outcome: str) -> Entry:
        return Entry(0, time(), self.who, self.way, source, self.question, sql, outcome, "", None, None)


def run_sql(trail: Trail | None, database: Database, sql: str, limits: Limits) -> Result | QueryError:
    """Execute; write to the audit log if `trail` is given, and trace the statement if traces are switched on."""
    with statement(database, sql) as tell:
        outcome = trail.run(database, sql, limits) if trail else database.execute(sql, limits)
        tell(outcome)
        return outcome


def _writable(value: object) -> object:
    """The value as it is stored: a long text is cut and says how long it was, and lone surrogates, which SQLite cannot store,
    are replaced.
    """
    if not isinstance(value, str):
        return value
    kept = value[:LONGEST_TEXT].encode(errors="replace").decode()
    return kept if len(value) <= LONGEST_TEXT else f"{kept} … ({len(value):,} characters)"
