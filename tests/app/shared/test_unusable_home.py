"""A cache that cannot be written, or that holds rubbish: one line, and answers all the same; what is kept there is private."""

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli import app
from app.serve import ui
from app.shared import exit_codes
from decoding.checkpoints import cache_folder
from tests.decoding.models.tiny_models import tiny_checkpoint


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def closed_home(home: Path) -> Path:
    """Nothing can be made there, not even by root."""
    home.write_text("a file where the folder should be")
    return home


@pytest.fixture
def asking(tmp_path: Path) -> list[str]:
    (tmp_path / "t.csv").write_text("a\n1\n")
    model = tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=4096)
    once = ["--no-constrain", "--attempts", "1", "--orders", "1"]  # what a random model writes is not looked at
    return ["--db", str(tmp_path / "t.csv"), "--model", str(model), *once, "--json"]


def run(*args: str, stdin: str | None = None) -> Result:
    said = CliRunner().invoke(app, list(args), input=stdin)
    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    return said


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_example_needs_no_cache(closed_home: Path) -> None:
    said = run("sql", "SELECT count(*) FROM albums", "--csv")
    assert (said.exit_code, said.stdout.split()[-1]) == (exit_codes.OK, "150")


def test_no_place_for_the_example_is_one_line(closed_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tools.example.build.example_database", full)
    said = run("sql", "SELECT 1")
    assert said.exit_code == exit_codes.DATABASE
    assert "No space left" in said.stderr and said.stderr.count("\n") == 1


def test_a_question_needs_no_cache(closed_home: Path, asking: list[str]) -> None:
    said = run("ask", "How many?", *asking, "--dtype", "int8")
    answer = json.loads(said.stdout)
    assert answer["question"] == "How many?"
    assert all(step["plain_ms_source"] == "estimated" for step in answer["steps"] if step["decoder"])
    assert said.stderr.count("weights cannot be kept") == 1
    assert said.stderr.count("kernels cannot be kept") <= 1  # only who compiled them says it


def test_a_folder_where_the_costs_should_be(home: Path, asking: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    costs = home / "costs" / "x.json"
    costs.mkdir(parents=True)
    monkeypatch.setattr("decoding.timing.PlainCost._path", lambda self: costs)
    assert json.loads(run("ask", "How many?", *asking).stdout)["question"] == "How many?"


def test_conversations_are_private(home: Path, asking: list[str]) -> None:
    run("chat", *asking, stdin="How many?\n")
    assert (_mode(home / "conversations.sqlite"), _mode(home)) == (0o600, 0o700)


def test_conversations_of_older_releases_become_private(home: Path, asking: list[str]) -> None:
    home.mkdir()
    (home / "conversations.sqlite").touch(mode=0o644)
    run("chat", *asking, stdin="How many?\n")
    assert _mode(home / "conversations.sqlite") == 0o600


def test_the_default_folder_becomes_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that somebody names may be shared on purpose."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(cache_folder, "cache_root", lambda: folder)
    monkeypatch.setenv("SQLAGENT_HOME", str(folder))
    assert _mode(cache_folder.made_cache_root()) == 0o755
    monkeypatch.delenv("SQLAGENT_HOME")
    assert _mode(cache_folder.made_cache_root()) == 0o700


@pytest.mark.parametrize("rubbish", ["a text that is no database, and longer than a header " * 99, None])
def test_a_chat_goes_on_without_its_file(home: Path, asking: list[str], rubbish: str | None) -> None:
    home.mkdir()
    path = home / "conversations.sqlite"
    path.write_text(rubbish) if rubbish else path.mkdir()
    said = run("chat", *asking, stdin="How many?\nAnd now?\n")
    assert [json.loads(line)["question"] for line in said.stdout.splitlines()] == ["How many?", "And now?"]
    assert said.stderr.count("conversations.sqlite cannot be used") == 1 and said.stderr.count("\n") <= 2
    continued = run("chat", *asking, "--continue", "x", stdin="How many?\n")
    assert (continued.exit_code, continued.stdout) == (exit_codes.USAGE, "")
    assert "move it away" in continued.stderr


def test_the_page_goes_on_without_its_file(closed_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = ui._archive(None, most_mb=1)
    assert archive.begin("ada", "example")
    archive.close()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_named_file_of_chats_must_be_usable(tmp_path: Path, home: Path) -> None:
    (tmp_path / "chats").write_text("no database at all" * 99)
    said = run("ui", "--chats", str(tmp_path / "chats"), "--model", "nowhere")
    assert said.exit_code == exit_codes.USAGE
    assert "cannot be used" in said.stderr and said.stderr.count("\n") == 1
