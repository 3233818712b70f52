"""OpenTelemetry traces: a span for each question, each step of its answer and each statement that runs.

OpenTelemetry's own environment variables switch them on; without them, none of its packages is imported. Spans are made
from what the agent reports anyway: its events, and outcomes in `agent.observe.audit`. Questions and SQL are included only
if OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT allows it; rows never are.
Names: https://opentelemetry.io/docs/specs/semconv/gen-ai/ and .../database/; what these lack is called `sqlagent.*`.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from time import time_ns
from typing import TYPE_CHECKING, Any, get_args

from agent.observe.events import Answered, Event, Finished
from decoding.errors import pip_install
from tools.databases.database import Database
from tools.result import QueryError, Result

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

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
