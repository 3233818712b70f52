"""The chat's commands, a stopped answer, and what is said of requests that would change data."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent.assemble import LoadedModel
from agent.calibration import Calibration
from agent.context import AgentContext
from agent.nodes import assess
from app.ask import ask
from app.shared import exit_codes
from app.shared.process import MachineTurn
from tests.agent.conftest import Talk
from tests.app.test_cli import COUNT, run, script, singer, tiny

__all__ = ["script", "singer", "tiny"]
QUESTION = "How many are from France?"
DOUBTS_ALL = Calibration(-2.0, {}, 0.5)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))


def chat(singer: str, tiny: str, *lines: str, options: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
    return run("chat", "--db", singer, "--model", tiny, *options, stdin="\n".join(lines) + "\n")


@pytest.mark.parametrize("word", ["exit", "quit", "/quit", "EXIT"])
def test_words_that_leave(tiny: str, singer: str, script, word: str) -> None:  # type: ignore[no-untyped-def]
    script()  # a question would find no model to answer it
    result = chat(singer, tiny, word, QUESTION)
    assert (result.exit_code, result.stdout) == (0, "")


def test_looking_around_asks_no_model(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script()
    result = chat(
        singer, tiny, "/help", "show tables;", "describe singer", "/schema nosuch", "/nonsense", "/sql", "/undo"
    )
    assert result.exit_code == 0, result.output
    for text in ("/undo", "name, country, age", "bigint", "Ada"):
        assert text in result.stdout
    for text in (
        "no table nosuch; there is: singer",
        "there is no /nonsense",
        "there is no SQL yet",
        "nothing to forget",
    ):
        assert text in result.stderr


def test_sql_of_the_last_answer_undo_and_an_export(tiny: str, singer: str, script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    script("plan", COUNT)
    out = tmp_path / "answer.csv"
    result = chat(
        singer, tiny, QUESTION, f"/out {out}", "/out answer.pdf", "/sql", "/sql SELECT 7 AS seven", "/undo", "/undo"
    )
    assert result.stdout.count("COUNT(*)") == 2
    assert "seven" in result.stdout
    assert out.read_text().splitlines() == ["singers", "2"]
    for text in (".csv, .parquet, .xlsx", f"forgotten: {QUESTION}", "nothing to forget"):
        assert text in result.stderr


def test_a_liked_answer_becomes_an_example_that_is_then_used(tiny: str, singer: str, script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "knowledge"
    folder.mkdir()
    script("plan", COUNT)
    liked = chat(singer, tiny, QUESTION, "/like", "/like", options=("--knowledge", str(folder)))
    assert COUNT in (folder / "examples.md").read_text()
    assert "it is there already" in liked.stderr

    script()  # the stored SQL needs no model
    result = run(
        "ask", "how many are from france", "--db", singer, "--model", tiny, "--knowledge", str(folder), "--json"
    )
    answer = json.loads(result.stdout)
    assert answer["rows"] == [[2]]
    assert answer["example"] == QUESTION
    told = run("ask", QUESTION, "--db", singer, "--model", tiny, "--knowledge", str(folder)).stdout
    assert f"by the stored example “{QUESTION}”" in told


def test_a_question_in_other_words_is_no_example(tiny: str, singer: str, script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "knowledge"
    folder.mkdir()
    (folder / "examples.md").write_text(f"## {QUESTION}\n\n```sql\n{COUNT}\n```\n")
    script("plan", "SELECT COUNT(*) FROM singer WHERE country <> 'France'")
    asked = (
        "ask",
        "How many are not from France?",
        "--db",
        singer,
        "--model",
        tiny,
        "--knowledge",
        str(folder),
        "--json",
    )
    answer = json.loads(run(*asked).stdout)
    assert answer["example"] is None
    assert answer["rows"] == [[1]]


@pytest.mark.parametrize("request_", ["Delete all singers", "please drop table singer", "Update singer set age = 1"])
def test_a_request_to_change_data_is_told_that_nothing_is(tiny: str, singer: str, script, request_: str) -> None:  # type: ignore[no-untyped-def]
    script()
    result = run("ask", request_, "--db", singer, "--model", tiny)
    assert result.exit_code == exit_codes.REFUSED
    assert "and nothing will be" in result.stderr


def test_ctrl_c_stops_the_answer_and_not_the_chat(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = talk("plan", "SELECT 1", "plan", "SELECT 2")

    def slow(*_: object) -> dict[str, object]:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            conversation.toolbox.stop.check()
            time.sleep(0.01)
        raise AssertionError("it was not stopped")

    with monkeypatch.context() as patched:
        patched.setattr(ask, "follow", slow)
        assert ask._stoppable(MachineTurn(False), conversation, "one?") is None
    assert not conversation.toolbox.stop.is_set()
    answer = ask._stoppable(MachineTurn(False), conversation, "and two?")
    assert answer is not None
    assert answer["error"] is None


def test_a_deadline_covers_the_question_as_a_whole(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A derailed decoding once ran to its token limit."""
    conversation = talk("plan", "SELECT 1", "plan", "SELECT COUNT(*) FROM singer", deadline_s=0.2)
    streamed = type(conversation.toolbox.model)._stream

    def slow(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        for chunk in streamed(self, *args, **kwargs):
            time.sleep(0.15)
            yield chunk

    with monkeypatch.context() as patched:
        patched.setattr(type(conversation.toolbox.model), "_stream", slow)
        answer = conversation.ask("How many?")
    assert answer.error is not None
    assert answer.error["kind"] == "timeout"
    assert "within 0.2 s" in answer.answer
    assert not conversation.toolbox.stop.is_set()
    assert talk("plan", "SELECT 1").ask("How many?").error is None


def test_a_doubtful_answer_is_headed_and_another_reading_can_be_taken(  # type: ignore[no-untyped-def]
    tiny: str, singer: str, script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the heading, the numbers of the readings, and a reading that would be asked of the model again."""
    other = "SELECT COUNT(*) FROM singer WHERE country = 'Spain'"
    script("plan", COUNT, "plan", "p", "p", "p", other)
    make = LoadedModel.toolbox

    def doubting(*given: Any) -> AgentContext:
        toolbox = make(*given)
        toolbox.calibration = DOUBTS_ALL
        return toolbox

    monkeypatch.setattr(LoadedModel, "toolbox", doubting)
    monkeypatch.setattr(assess, "OTHER_PLANS", 4)
    result = chat(singer, tiny, QUESTION, "/other 2", "/other 1", "/other", "/other x")
    assert result.exit_code == 0, result.output
    headed, _, rest = result.stdout.partition("Which do you mean: only where country is “France”, or only")
    assert headed.startswith("Probably wrong: 2 singers")
    assert "1  only where country is “Spain” → 1\n" in rest
    assert "\n1 singer" in rest and "Probably wrong" not in rest
    assert result.stderr.count("choose a reading from 1 to 1") == 3
