"""Several commands at once on one machine: one after the other, and a killed one makes nobody wait.

A `ulimit -v` that is too low is told in a line; it was a segmentation fault of a library.

`--hide` and `--tables`, given more than once and by the environment, for every command that opens a database.

`--hide` given twice hid only what was named last, and an option switched off what the environment hides.
"""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from agent import assemble
from app.cli import COMMANDS, _command
from app.shared import exit_codes, options
from app.shared.options import DatabaseOptions
from app.shared.process import MachineTurn
from tests.app.test_cli import run
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.result import OpenError

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


def test_three_questions_at_once_are_answered_one_after_the_other(asking: list[str]) -> None:
    commands = [_python(ASK, "ask", "How many?", *asking) for _ in range(3)]
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


@pytest.mark.parametrize(
    ("command", "megabytes"),
    [(["sql", "SELECT 1"], 300), (["sql", "SELECT 1"], 900), (["ask", "How many?"], 600), (["chat"], 900)],
)
def test_little_address_space_is_one_line(command: list[str], megabytes: int, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    done = subprocess.run(
        [sys.executable, "-c", "from app.cli import app; app()", *command, "--db", str(tmp_path / "t.csv")],
        cwd=ROOT,
        env=os.environ | {"SQLAGENT_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20)),
    )
    assert done.returncode == exit_codes.FAILED
    assert f"{megabytes} MiB of address space" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_want_of_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("mmap: Cannot allocate memory (12)"),
    ):
        with pytest.raises(exit_codes.typer.Exit), exit_codes.plain_errors():
            raise error
        said = capsys.readouterr().err
        assert "not enough memory" in said and said.count("\n") == 1
    with pytest.raises(exit_codes.typer.Exit), exit_codes.plain_errors():
        raise RuntimeError("something else")
    assert "this failed unexpectedly (RuntimeError: something else)" in capsys.readouterr().err


NEEDED = {"check": ["SELECT 1"], "test": [__file__], "learn": ["knowledge"]}  # what these commands must be given
READERS = ("ask", "chat", "sql", "check", "test", "schema", "ui", "mcp", "serve", "learn")


@pytest.fixture
def shop(tmp_path: Path) -> list[str]:
    (tmp_path / "people.csv").write_text("name,wage\nAda,777001\n")
    (tmp_path / "secret.csv").write_text("note\nS3CR3T\n")
    (tmp_path / "open.csv").write_text("word\nhello\n")
    return ["--db", str(tmp_path)]


def _given(name: str, *arguments: str) -> DatabaseOptions:
    """What a command is told of its database."""
    given: dict[str, Any] = _command(name).make_context(name, [*NEEDED.get(name, ()), *arguments]).params
    return DatabaseOptions(**{each: given[each] for each in ("db", "engine", "tables", "hide")})


def _seen(options: DatabaseOptions) -> set[str]:
    """The columns of the database that is opened so."""
    with closing(options.open()) as database:
        return {f"{table.name}.{column.name}" for table in database.schema().tables for column in table.columns}


HIDING: list[tuple[dict[str, str], list[str], set[str]]] = [  # environment, options, what is left to see
    ({}, ["--hide", "people.wage", "--hide", "secret"], {"people.name", "open.word"}),
    ({}, ["--tables", "people", "--tables", "open,secret", "--hide", "secret"],
     {"people.name", "people.wage", "open.word"}),
    ({"SQLAGENT_HIDE": "people.wage"}, ["--hide", "secret"], {"people.name", "open.word"}),
    ({"SQLAGENT_HIDE": "people.wage"}, ["--hide", ""], {"people.name", "open.word", "secret.note"}),
    ({"SQLAGENT_HIDE": "people.wage", "SQLAGENT_TABLES": "people,open"}, [], {"people.name", "open.word"}),
    ({"SQLAGENT_HIDE": "people.wage", "SQLAGENT_TABLES": "people,open"}, ["--tables", "open"], {"open.word"}),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "arguments", "seen"), HIDING)
def test_every_reader_hides_all_that_is_named(
    environment: dict[str, str], arguments: list[str], seen: set[str], shop: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command tells the same of its database, which is opened for one of them."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    first, *others = [_given(name, *shop, *arguments) for name in READERS]
    assert all(each == first for each in others)
    assert _seen(first) == seen


def test_every_command_that_hides_is_among_them() -> None:
    hiding = {name for name in COMMANDS if any(each.name == "hide" for each in _command(name).params)}
    assert hiding == set(READERS)


def test_hidden_twice_means_hidden(shop: list[str]) -> None:
    hidden = ("--hide", "people.wage", "--hide", "secret")
    for statement in ("SELECT max(wage) FROM people", "SELECT * FROM secret"):
        said = run("sql", statement, *shop, *hidden)
        assert said.exit_code != 0 and "777001" not in said.output and "S3CR3T" not in said.output
    with pytest.raises(OpenError, match="nosuch"):
        DatabaseOptions(db=[shop[1]], hide=["people.wage", "nosuch"]).open()
