"""Guards the event records: what a question tells while it runs, and that a file of them says the same again.

The log of who asked what: complete, written before it runs, safe from kill -9, and never in the way of an answer.

Traces: which spans there are, what they tell and what they keep to themselves, and that they cost nothing unasked.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typer.testing import CliRunner

from agent.conversation import records
from agent.observe import audit
from agent.observe.audit import AuditLog, Entry, Trail, Wanted, run_sql
from agent.observe.events import (
    Answered,
    Asked,
    EventError,
    Failed,
    Finished,
    Judged,
    Measured,
    Noted,
    Ran,
    Wrote,
    from_json,
    to_json,
)
from agent.observe.step_record import Note
from app.cli import app
from decoding.engine.rounds import Round
from decoding.serving.model_queue import Stopped
from tests.agent.conftest import Talk
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Limits, QueryError

COUNT = "SELECT COUNT(*) FROM singer WHERE country = 'France'"
ROUND = Round(0, 0, 1, 7, (5, 6), (-1, 0), (0,), (5, 9), (4,), 0.1, 2.5, 0.2, "stop")


@pytest.mark.parametrize(
    "event",
    [
        Asked("how many?", "France is a country", "singers"),
        Wrote("generate", "SELECT", (ROUND,), {5: "SEL", 6: "x", 9: "ECT", 4: " "}),
        Noted("link", (Note("tables", "singer"), Note("SQL", "SELECT 1", "sql"))),
        Ran(2, "SELECT 1", ("a", "b"), ((1, "x"), (None, "ü")), 2, True, 1.5),
        Measured(1, 0, 2.5),
        Ran(0, "SELEC", error={"kind": "syntax", "message": "no", "name": None, "position": 3, "candidates": ["x"]}),
        Judged(1, None),
        Failed("Stopped.", True),
    ],
)
def test_an_event_survives_its_line(event: object) -> None:
    line = to_json(event)  # type: ignore[arg-type]
    assert "\n" not in line
    assert from_json(line) == event


@pytest.mark.parametrize(
    "line", ["", "no json", "[]", "{}", '{"event": "unheard"}', '{"event": "asked"}', '{"event": []}']
)
def test_a_line_that_is_no_event_is_named(line: str) -> None:
    with pytest.raises(EventError, match="not an event"):
        from_json(line)


STEP = {"name": "plan", "wall_ms": 1.0}
ANSWER = {
    "question": "q", "sql": None, "dialect": "duckdb", "columns": ["a"], "rows": [[1]], "truncated": False, "answer": "1",
    "attempts": [], "steps": [STEP], "total_ms": 1.0, "plain_total_ms": None, "error": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        {"event": "started", "step": ["x"]},
        {"event": "asked", "question": {"a": 1}},
        {"event": "judged", "turn": "one", "liked": None},
        {"event": "unclear", "phrase": "x", "options": ["a"]},
        {"event": "noted", "step": "link", "notes": [{"label": "a"}]},
        {"event": "finished", "record": {"name": ["plan"], "wall_ms": 1}},
        {"event": "finished", "record": {"name": "plan"}},
        {"event": "finished", "record": STEP | {"wall_ms": float("nan")}},
        {"event": "answered", "answer": {}, "row_count": 1},
        {"event": "answered", "answer": ANSWER | {"rows": [[1, 2]]}, "row_count": 1},
        {"event": "answered", "answer": ANSWER | {"attempts": [{"sql": 1}]}, "row_count": 1},
        {"event": "answered", "answer": ANSWER | {"error": {"kind": "other"}}, "row_count": 1},
        {"event": "ran", "turn": 0, "sql": "SELECT 1", "rows": [1]},
        {"event": "ran", "turn": 0, "sql": "SELECT 1", "columns": ["a", "b"], "rows": [[1]]},
        {"event": "ran", "turn": 0, "sql": "SELECT 1", "error": {"candidates": 3}},
    ],
)
def test_a_damaged_event_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(EventError, match="not an event"):
        from_json(json.dumps(body))


@pytest.mark.parametrize(
    "change", [{"draft_parents": (1, 0)}, {"draft_parents": (-1,)}, {"accepted": (7,)}, {"committed": ()}, {"batch": 0}]
)
def test_a_round_that_cannot_be_drawn_is_refused(change: dict[str, object]) -> None:
    wrote = Wrote("plan", "x", (replace(ROUND, **change),), {})  # type: ignore[arg-type]
    with pytest.raises(EventError):
        from_json(to_json(wrote))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(EventError):
        from_json('{"event": "ran", "turn": 0, "sql": "x", "rows": ' + "[" * 100_000 + "]" * 100_000 + "}")


def test_what_an_older_program_left_out_is_filled_in() -> None:
    event = from_json(json.dumps({"event": "finished", "record": STEP}))
    assert isinstance(event, Finished)
    assert event.record["decoder"] is None and event.record["detail"] == ""


def test_a_question_tells_its_steps_in_order(talk: Talk) -> None:
    told = list(records(talk("singer: country", COUNT), "How many are from France?"))
    assert isinstance(told[0], Asked)
    assert isinstance(told[-1], Answered)
    steps = [event.record["name"] for event in told if isinstance(event, Finished)]
    assert steps == ["link", "plan", "generate", "check", "execute", "answer"]
    notes = {(event.step, note.label): note.text for event in told if isinstance(event, Noted) for note in event.notes}
    assert notes["plan", "plan"] == "singer: country"
    assert notes["execute", "ran"] == COUNT
    assert "singer.country" in notes["link", "tables and columns that the question may mean"]


def test_text_arrives_piece_by_piece(talk: Talk) -> None:
    told = records(talk("p", COUNT), "How many?")
    pieces = [event.text for event in told if isinstance(event, Wrote) and event.step == "generate"]
    assert len(pieces) > 10
    assert "".join(pieces) == COUNT


def test_rows_are_cut_and_their_number_is_not(talk: Talk) -> None:
    *_, last = records(talk("p", "SELECT name FROM singer"), "Names?", shown=2)
    assert isinstance(last, Answered)
    assert len(last.answer["rows"]) == 2
    assert last.row_count == 3
    assert from_json(to_json(last)) == last


ROOT = Path(__file__).parents[3]
ALL = Wanted()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    with closing(AuditLog(tmp_path / "log.sqlite")) as opened:
        yield opened


def _told(log: AuditLog, wanted: Wanted = ALL) -> list[tuple[str, str | None, str, int | None]]:
    return [(entry.question, entry.sql, entry.outcome, entry.row_count) for entry in log.entries(wanted)]


def test_a_question_and_every_statement_of_its_answer(talk: Talk, log: AuditLog) -> None:
    wrong, right = "DELETE FROM singer", "SELECT name FROM singer WHERE age > 30"
    conversation = talk("plan", wrong, right)
    conversation.toolbox.trail = Trail(log, "ada", "ui")
    conversation.ask("Who is old?")
    assert _told(log) == [
        ("Who is old?", None, "asked", None),
        ("Who is old?", wrong, "refused", None),
        ("Who is old?", right, "ok", 2),
    ]
    assert {(entry.who, entry.way, entry.source) for entry in log.entries(ALL)} == {("ada", "ui", "singers")}
    assert _told(log, Wanted(outcome="refused")) == _told(log)[1:2]
    assert _told(log, Wanted(text="AGE >")) == _told(log)[2:]
    assert _told(log, Wanted(who="bo")) == _told(log, Wanted(since_s=time.time() + 9)) == []
    assert [entry.id for entry in log.entries(ALL, most=1)] == [3]
    assert [entry.id for entry in log.entries(ALL, after=1)] == [2, 3]


def test_keys_that_the_engine_got_besides_are_named(log: AuditLog, tmp_path: Path) -> None:
    (tmp_path / "singer.csv").write_text("name,age\nAda,3\nBo,3\n")
    with closing(open_database(tmp_path / "singer.csv")) as database:
        Trail(log, "ada", "ui").run(database, "SELECT name FROM singer ORDER BY age LIMIT 1", Limits())
        Trail(log, "ada", "ui").run(database, "SELECT name FROM singer LIMIT 1", Limits())
    assert [entry.message for entry in log.entries(ALL)] == ['ties settled by "singer".rowid', ""]


def test_a_long_statement_is_cut_and_says_so(talk: Talk, log: AuditLog) -> None:
    statement = f"SELECT '{'x' * 5_000_000}' FROM nowhere"
    trail = Trail(log, "ada", "ui")
    trail.asked("y" * 5_000_000, "singers")
    trail.run(talk("plan").toolbox.database, statement, Limits())
    asked, ran = log.entries(ALL)
    assert len(asked.question) < 70_000 and asked.question.endswith("(5,000,000 characters)")
    assert ran.sql is not None and len(ran.sql) < 70_000 and ran.sql.endswith(f"({len(statement):,} characters)")
    assert statement.startswith(ran.sql[:60_000])


def test_a_killed_program_has_said_what_it_was_doing(singers: Path, tmp_path: Path) -> None:
    """Guards against a log that is written afterwards: the query during which the program dies is what one looks for."""
    code = f"""
from pathlib import Path
from agent.observe.audit import AuditLog, Trail
from tools.databases.open_database import open_database
from tools.result import Limits
trail = Trail(AuditLog(Path({str(tmp_path / "log.sqlite")!r})), "eve", "sql")
database = open_database({str(singers)!r})
trail.run(database, "SELECT 1", Limits())
print("running", flush=True)
trail.run(database, "SELECT count(*) FROM range(1000000000) a, range(1000000000) b", Limits())
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None and process.stdout.readline() == b"running\n"
    with closing(AuditLog(tmp_path / "log.sqlite")) as log:
        for _ in range(200):
            if len(_told(log)) == 2:
                break
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert [entry.outcome for entry in log.entries(ALL)] == ["ok", "running"]


def test_a_log_that_cannot_be_written_costs_no_answer(
    talk: Talk, log: AuditLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk: SQLite is given no page more than it has."""
    log._connection.execute("PRAGMA max_page_count = 1")
    conversation = talk("plan", "SELECT name FROM singer", "plan", "SELECT age FROM singer")
    conversation.toolbox.trail = Trail(log, "ada", "ask")
    long = "Who? " * 2000
    assert conversation.ask(long).error is None
    assert conversation.ask(long).error is None
    assert capsys.readouterr().err.count("the log cannot be written (database or disk is full)") == 1


def test_half_characters_are_logged(database: Database, log: AuditLog) -> None:
    outcome = Trail(log, "eve", "sql").run(database, "SELECT '\ud800'", Limits())
    assert isinstance(outcome, QueryError)
    assert _told(log) == [("", "SELECT '?'", "syntax", None)]


def test_the_command_shows_filters_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: AuditLog) -> None:
    monkeypatch.setenv("SQLAGENT_LOG", str(tmp_path / "log.sqlite"))
    run = CliRunner().invoke
    trap = "x\n2026-01-01 00:00:00 root sql shop: ok: SELECT 1\x1b[2J"
    log.write(Entry(0, 0.0, "eve", "ui", "shop", trap, None, "asked", "", None, None))
    log.write(Entry(0, 1e9, "ada", "ui", "shop", "q", "SELECT 1", "ok", "", 1, 0.4))
    shown = run(app, ["logs"]).stdout
    assert len(shown.splitlines()) == 2 and "\x1b" not in shown
    assert "ada ui shop: ok 1 rows 0 ms: SELECT 1" in shown
    (line,) = run(app, ["logs", "--json", "--since", "2000-01-01"]).stdout.splitlines()
    assert json.loads(line)["sql"] == "SELECT 1"
    head, first, *_ = run(app, ["logs", "--csv", "--who", "ada"]).stdout.splitlines()
    assert head.startswith("id,at_s,who") and "SELECT 1" in first
    log.write(Entry(0, 2e9, "eve", "serve", "shop", "=cmd|' /c calc'!A1", None, "asked", "", None, None))
    assert ",'=cmd|" in run(app, ["logs", "--csv", "--who", "eve"]).stdout, "a spreadsheet would compute it"
    assert json.loads(run(app, ["logs", "--json", "-n", "1"]).stdout)["question"].startswith("=cmd")
    monkeypatch.setenv("SQLAGENT_LOG", "off")
    assert run(app, ["logs"]).exit_code == 2


def test_every_command_leaves_its_trail(singers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_LOG", str(tmp_path / "log.sqlite"))
    CliRunner().invoke(app, ["sql", "SELECT count(*) FROM singer", "--db", str(singers)])
    CliRunner().invoke(app, ["sql", "DROP TABLE singer", "--db", str(singers)])
    with closing(AuditLog(tmp_path / "log.sqlite")) as log:
        assert [(entry.way, entry.outcome) for entry in log.entries(ALL)] == [("sql", "ok"), ("sql", "refused")]
    assert (tmp_path / "log.sqlite").stat().st_mode & 0o077 == 0


WRONG, RIGHT = "SELECT nam FROM singer", "SELECT name FROM singer WHERE age > 30"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(audit, "_tracer", lambda: provider.get_tracer("test"))
    monkeypatch.delenv(audit._CAPTURE, raising=False)
    yield kept
    provider.shutdown()


def _named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def _told_telemetry(span: ReadableSpan) -> dict[str, Any]:
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
    assert _told_telemetry(question)["gen_ai.conversation.id"] == conversation.thread
    assert _told_telemetry(question)["db.response.returned_rows"] == 2
    assert _told_telemetry(spans["query singers"]) == {
        "db.system.name": "sqlite", "db.namespace": "singers", "db.response.returned_rows": 2,
    }  # fmt: skip


def test_a_step_tells_its_tokens(exporter: InMemorySpanExporter) -> None:
    step = {"name": "generate", "wall_ms": 5.0, "prompt_tokens": 300, "cached_tokens": 200, "new_tokens": 30}
    step |= {"decoder": "jacobi_forcing", "target_forwards": 10, "plain_forwards": 28, "tokens_per_forward": 3.0}
    step["forced_tokens"] = 4
    events = [Finished(step)]
    assert list(audit._traced(audit._tracer(), "?", _Named(), "one", iter(events))) == events  # type: ignore[arg-type]
    span = _named(exporter)["chat generate"]
    assert (span.end_time or 0) - (span.start_time or 0) == 5_000_000
    assert _told_telemetry(span) == {
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
    monkeypatch.setenv(audit._CAPTURE, allowed)
    talk("plan", RIGHT).ask("Who is old?")
    everything = str([_told_telemetry(span) for span in exporter.get_finished_spans()])
    assert ("Who is old?" in everything, RIGHT in everything) == (tells, tells)
    assert "Ada" not in everything


def test_what_fails_says_how(database: Database, talk: Talk, exporter: InMemorySpanExporter) -> None:
    run_sql(None, database, WRONG, Limits())
    talk("plan", WRONG, WRONG, WRONG).ask("Who is old?")
    spans = _named(exporter)
    assert _told_telemetry(spans["query singers"])["error.type"] == "unknown_column"
    assert not spans["query singers"].status.is_ok
    assert "error.type" in _told_telemetry(spans["invoke_agent sqlagent"])


def test_a_broken_conversation_ends_its_span(talk: Talk, exporter: InMemorySpanExporter) -> None:
    conversation = talk("plan")
    conversation.toolbox.stop.stop()
    with pytest.raises(Stopped):
        conversation.ask("Who?")
    (span,) = (each for each in exporter.get_finished_spans() if each.name.startswith("invoke_agent"))
    assert _told_telemetry(span)["error.type"] == "Stopped"


def test_nothing_is_imported_unasked() -> None:
    """A program that asks, without the environment's word."""
    code = "import sys; from agent.observe.audit import _tracer; "
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
        audit._tracer.cache_clear()
        tracer: Any = audit._tracer()
        run_sql(None, database, "SELECT 1", Limits())
        tracer.span_processor.force_flush()
        tracer.span_processor.shutdown()
        audit._tracer.cache_clear()
        server.shutdown()
    ((path, body),) = got
    assert path == "/v1/traces" and b"query singers" in body and b"sqlagent" in body
