"""Traces: which spans there are, what they tell and what they keep to themselves, and that they cost nothing unasked."""

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent.observe import telemetry
from agent.observe.audit import run_sql
from agent.observe.events import Finished
from decoding.serving.model_queue import Stopped
from tests.agent.conftest import Talk
from tools.databases.database import Database
from tools.result import Limits

ROOT = Path(__file__).parents[3]
WRONG, RIGHT = "SELECT nam FROM singer", "SELECT name FROM singer WHERE age > 30"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(telemetry, "_tracer", lambda: provider.get_tracer("test"))
    monkeypatch.delenv(telemetry._CAPTURE, raising=False)
    yield kept
    provider.shutdown()


def _named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def _told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_span_for_the_question_each_step_and_each_statement(talk: Talk, exporter: InMemorySpanExporter) -> None:
    conversation = talk("plan", RIGHT)
    conversation.ask("Who is old?")
    spans = _named(exporter)
    assert list(spans) == [
        "execute_tool link", "chat plan", "chat generate", "execute_tool check", "query singers", "execute_tool execute",
        "execute_tool answer", "invoke_agent sqlagent",
    ]  # fmt: skip
    question = spans.pop("invoke_agent sqlagent")
    assert question.parent is None and question.start_time and question.end_time
    for span in spans.values():
        assert span.parent is not None and span.parent.span_id == question.context.span_id
        assert question.start_time <= (span.start_time or 0) <= (span.end_time or 0) <= question.end_time
    assert _told(question)["gen_ai.conversation.id"] == conversation.thread
    assert _told(question)["db.response.returned_rows"] == 2
    assert _told(spans["query singers"]) == {
        "db.system.name": "sqlite", "db.namespace": "singers", "db.response.returned_rows": 2,
    }  # fmt: skip


def test_a_step_tells_its_tokens(exporter: InMemorySpanExporter) -> None:
    step = {"name": "generate", "wall_ms": 5.0, "prompt_tokens": 300, "cached_tokens": 200, "new_tokens": 30}
    step |= {"decoder": "jacobi_forcing", "target_forwards": 10, "plain_forwards": 28, "tokens_per_forward": 3.0}
    step["forced_tokens"] = 4
    events = [Finished(step)]
    assert list(telemetry._traced(telemetry._tracer(), "?", _Named(), "one", iter(events))) == events  # type: ignore[arg-type]
    span = _named(exporter)["chat generate"]
    assert (span.end_time or 0) - (span.start_time or 0) == 5_000_000
    assert _told(span) == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "sqlagent", "sqlagent.step": "generate",
        "gen_ai.usage.input_tokens": 300, "gen_ai.usage.cache_read.input_tokens": 200, "gen_ai.usage.output_tokens": 30,
        "sqlagent.decoder": "jacobi_forcing", "sqlagent.target_forwards": 10, "sqlagent.plain_forwards": 28,
        "sqlagent.tokens_per_forward": 3.0, "sqlagent.forced_tokens": 4,
    }  # fmt: skip


class _Named:
    name, dialect = "shop", "duckdb"


@pytest.mark.parametrize(("allowed", "tells"), [("", False), ("false", False), ("true", True), ("SPAN_ONLY", True)])
def test_questions_and_sql_are_told_only_where_that_is_allowed(
    allowed: str, tells: bool, talk: Talk, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(telemetry._CAPTURE, allowed)
    talk("plan", RIGHT).ask("Who is old?")
    everything = str([_told(span) for span in exporter.get_finished_spans()])
    assert ("Who is old?" in everything, RIGHT in everything) == (tells, tells)
    assert "Ada" not in everything


def test_what_fails_says_how(database: Database, talk: Talk, exporter: InMemorySpanExporter) -> None:
    run_sql(None, database, WRONG, Limits())
    talk("plan", WRONG, WRONG, WRONG).ask("Who is old?")
    spans = _named(exporter)
    assert _told(spans["query singers"])["error.type"] == "unknown_column"
    assert not spans["query singers"].status.is_ok
    assert "error.type" in _told(spans["invoke_agent sqlagent"])


def test_a_broken_conversation_ends_its_span(talk: Talk, exporter: InMemorySpanExporter) -> None:
    conversation = talk("plan")
    conversation.toolbox.stop.stop()
    with pytest.raises(Stopped):
        conversation.ask("Who?")
    (span,) = (each for each in exporter.get_finished_spans() if each.name.startswith("invoke_agent"))
    assert _told(span)["error.type"] == "Stopped"


def test_nothing_is_imported_unasked() -> None:
    """A program that asks, without the environment's word."""
    code = "import sys; from agent.observe.telemetry import _tracer; "
    code += "sys.exit(_tracer() is not None or 'opentelemetry' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={})


def test_the_standard_variables_are_enough(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces arrive at a collector that nothing but the environment names."""
    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        telemetry._tracer.cache_clear()
        tracer: Any = telemetry._tracer()
        run_sql(None, database, "SELECT 1", Limits())
        tracer.span_processor.force_flush()
        tracer.span_processor.shutdown()
        telemetry._tracer.cache_clear()
        server.shutdown()
    ((path, body),) = got
    assert path == "/v1/traces" and b"query singers" in body and b"sqlagent" in body
