"""The log of who asked what: complete, written before it runs, safe from kill -9, and never in the way of an answer."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.observe.audit import AuditLog, Entry, Trail, Wanted
from app.cli import app
from tests.agent.conftest import Talk
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Limits, QueryError

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
