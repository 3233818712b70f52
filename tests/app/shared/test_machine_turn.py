"""Several commands at once on one machine: one after the other, and a killed one makes nobody wait."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from agent import assemble
from app.shared import options
from app.shared.process import MachineTurn
from tests.decoding.models.tiny_models import tiny_checkpoint

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120
HEED = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # which is ignored behind a shell's `&`
)
HOLD = (
    "from app.shared.process import MachineTurn; turn = MachineTurn(); turn.take(); print('mine', flush=True); input()"
)
ASK = "from app.cli import app; app()"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SQLAGENT_TURNS", "on")
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@contextmanager
def _python(code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _line(stream: object) -> str:
    return stream.readline().strip()  # type: ignore[attr-defined, no-any-return]


def test_the_next_one_waits_and_says_for_whom(home: Path) -> None:
    with _python(HOLD) as first:
        assert _line(first.stdout) == "mine"
        with _python(HOLD) as second:
            assert _line(second.stderr) == f"sqlagent: waiting for process {first.pid}, which is answering a question"
            first.stdin.write("\n")  # type: ignore[union-attr]
            first.stdin.flush()  # type: ignore[union-attr]
            assert _line(second.stdout) == "mine"


def test_a_killed_holder_makes_nobody_wait(home: Path) -> None:
    with _python(HOLD) as first:
        assert _line(first.stdout) == "mine"
        with _python(HOLD) as second:
            assert "waiting" in _line(second.stderr)
            os.kill(first.pid, signal.SIGKILL)
            assert _line(second.stdout) == "mine"


def test_ctrl_c_ends_the_wait(home: Path) -> None:
    with _python(HOLD) as first:
        assert _line(first.stdout) == "mine"
        with _python(HEED + HOLD) as second:
            assert "waiting" in _line(second.stderr)
            second.send_signal(signal.SIGINT)
            assert second.wait(PATIENCE_S) != 0


def test_taking_and_leaving_twice(home: Path) -> None:
    turn, other = MachineTurn(), MachineTurn()
    turn.take()
    turn.take()
    turn.leave()
    turn.leave()
    other.take()
    other.leave()


def test_where_no_file_can_be_locked_nobody_waits(home: Path) -> None:
    home.write_text("a file where the folder should be")
    MachineTurn().take()


def test_a_model_elsewhere_needs_no_turn(home: Path) -> None:
    assert assemble.SCHEME == options.REMOTE
    MachineTurn(is_needed=False).take()
    assert not home.exists()


@pytest.fixture
def asking(home: Path, tmp_path: Path) -> list[str]:
    """Options of a command on a small table, with a model that is soon loaded and soon gives up."""
    (tmp_path / "t.csv").write_text("a\n1\n")
    model = tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=4096)
    return ["--db", str(tmp_path / "t.csv"), "--model", str(model), "--deadline", "1", "--json"]


def test_five_questions_at_once_are_answered_one_after_the_other(asking: list[str]) -> None:
    commands = [_python(ASK, "ask", "How many?", *asking) for _ in range(5)]
    processes = [command.__enter__() for command in commands]
    try:
        ended = [process.communicate(timeout=PATIENCE_S) for process in processes]
    finally:
        for command in commands:
            command.__exit__(None, None, None)
    assert all('"question": "How many?"' in out for out, _ in ended), ended
    assert sum("waiting for" in error for _, error in ended) >= 1


def test_a_chat_that_waits_for_its_person_keeps_nobody(asking: list[str]) -> None:
    with _python(ASK, "chat", *asking) as chat:
        for question in ("How many?", "And now?"):
            chat.stdin.write(f"{question}\n")  # type: ignore[union-attr]
            chat.stdin.flush()  # type: ignore[union-attr]
            assert f'"question": "{question}"' in _line(chat.stdout)
            started_s = monotonic()
            with _python(ASK, "ask", "How many?", *asking) as ask:
                assert '"question": "How many?"' in ask.communicate(timeout=PATIENCE_S)[0]
            assert monotonic() - started_s < PATIENCE_S
