"""The command as a process: streams that are closed, full or of few signs, a killed owner, and what nobody expected.

Each ends in one line and a documented exit code; before, each was a traceback.

Tables fit a terminal and say what they leave out; in a pipe they are complete.

Cells, names and messages that would steer a terminal are spelt out; what is piped to a program stays as it is.

A cache that cannot be written, or that holds rubbish: one line, and answers all the same; what is kept there is private.
"""

import json
import os
import pty
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from agent.observe.audit import AuditLog, Wanted
from app.cli import app
from app.serve import ui
from app.shared import exit_codes, output
from app.shared import output as tables
from app.shared.output import in_json, shown
from decoding.checkpoints import cache_folder
from tests.decoding.models.tiny_models import tiny_checkpoint

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-c", "from app.cli import main; main()"]
ROWS = "SELECT range AS a FROM range(20000)"


def sqlagent(*arguments: str, shell: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it as a process, with the shell's redirections; text of stdout that is caught is UTF-8."""
    line = ["sh", "-c", f'exec "$@" {shell}', "sh", *COMMAND, *arguments]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(line, cwd=ROOT, env=given, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize(("where", "unbuffered"), [("> /dev/full", ""), (">&-", "1")])
@pytest.mark.parametrize("what", [("sql", ROWS, "--csv"), ("sql", "SELECT 1", "--json"), ("sql", "SELECT 1")])
def test_output_that_cannot_be_written_is_one_line(what: tuple[str, ...], where: str, unbuffered: str) -> None:
    done = sqlagent(*what, shell=where, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == exit_codes.INCOMPLETE, done.stderr
    assert done.stderr.startswith("sqlagent: not all could be written") and done.stderr.count("\n") == 1


def test_without_any_stream_there_is_a_code_all_the_same() -> None:
    assert sqlagent("sql", "SELECT 1", shell="<&- >&- 2>&-").returncode == exit_codes.INCOMPLETE
    assert sqlagent("sql", shell="<&-").returncode == exit_codes.USAGE


def test_few_signs_are_spelled_out_for_people_and_refused_for_programs() -> None:
    """A file of other characters than the database's, without a word, would be worse than none."""
    statement = "SELECT 'é' AS a, NULL AS b"
    shown = sqlagent("sql", statement, PYTHONIOENCODING="ascii")
    assert shown.returncode == exit_codes.OK and r"\xe9" in shown.stdout, shown.stderr
    as_json = sqlagent("sql", statement, "--json", PYTHONIOENCODING="ascii")
    assert as_json.returncode == exit_codes.OK and '"\\u00e9"' in as_json.stdout
    as_csv = sqlagent("sql", statement, "--csv", PYTHONIOENCODING="ascii")
    assert as_csv.returncode == exit_codes.INCOMPLETE
    assert as_csv.stderr == "sqlagent: stdout takes only ascii, which has no '\\xe9': set PYTHONIOENCODING=utf-8\n"


def test_a_process_for_queries_outlives_nobody_with_a_traceback(tmp_path: Path) -> None:
    """Its owner was ended while it answered: it wrote to a pipe that nobody read, and said so in twenty lines."""
    told = (tmp_path / "stderr").open("w+")
    code = (
        "import threading, time; from tools.databases.open_database import open_database;"
        f"d = open_database({str(_table(tmp_path))!r}, isolated=True); d.prepare();"
        "threading.Thread(target=d.execute, args=('SELECT count(*) FROM range(300000000) a',), daemon=True).start();"
        "time.sleep(0.3); print('asked', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=told, cwd=ROOT)
    assert owner.stdout is not None and owner.stdout.readline() == b"asked\n"
    owner.send_signal(signal.SIGTERM)
    assert owner.wait() == -signal.SIGTERM
    time.sleep(3)
    told.seek(0)
    assert told.read() == ""


def _table(folder: Path) -> Path:
    path = folder / "t.csv"
    path.write_text("a\n1\n")
    return path


@pytest.mark.parametrize("first", [("sql", "SELECT 1"), ("schema",), ("logs",), ("doctor",), ("models", "list")])
def test_the_cache_is_private_whatever_comes_first(first: tuple[str, ...], tmp_path: Path) -> None:
    """`ask` made it so, and `sql` did not."""
    left_out = {"SQLAGENT_HOME": "", "SQLAGENT_LOG": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    sqlagent(*first, **left_out)
    assert stat.S_IMODE((tmp_path / "cache" / "sqlagent").stat().st_mode) == 0o700


def test_what_nobody_expected_is_one_line_and_an_entry_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("S3cret", "postgresql://ada:S3cret@h/x")

    monkeypatch.setattr("app.shared.databases.open_named", fails)
    monkeypatch.setenv("SQLAGENT_LOG", str(tmp_path / "log.sqlite"))
    said = CliRunner().invoke(app, ["sql", "SELECT 1"])
    assert said.exit_code == exit_codes.FAILED and "Traceback" not in said.output
    assert said.stderr.count("\n") == 1 and "this failed unexpectedly (KeyError: " in said.stderr
    (entry,) = AuditLog(tmp_path / "log.sqlite").entries(Wanted(outcome="failure"))
    assert "Traceback" in entry.message and "ada:S3cret" not in entry.message
    shown = CliRunner().invoke(app, ["logs", "--outcome", "failure"])
    assert shown.stdout.count("\n") == 1 and "Traceback" not in shown.stdout


@pytest.mark.parametrize("package", ["mcp", "prometheus_client"])
def test_a_missing_extra_is_one_line(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mcp was looked for."""
    monkeypatch.setattr(exit_codes, "find_spec", lambda name: None if name == package else object())
    said = CliRunner().invoke(app, ["serve", "--port", "0"])
    assert said.exit_code == exit_codes.USAGE
    assert (
        said.stderr
        == f"sqlagent: this needs the package {package}; install it with: pip install 'sqlagent-local[serve]'\n"
    )


@pytest.mark.parametrize("name", exit_codes._CODES)
def test_each_error_with_a_code_is_where_the_table_says(name: str) -> None:
    """One had moved, and ended in a traceback."""
    module, _, kind = name.rpartition(".")
    found = getattr(import_module(module), kind)
    assert name in [f"{each.__module__}.{each.__qualname__}" for each in found.__mro__] or module == "openai"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://reader:p@ss:S3cretPw@127.0.0.1:1/att",
        "postgresql://reader:S3cretPw@127.0.0.1:port/att",
        "http://reader:S3cretPw@h/x.csv",
        "nosuch://reader:S3cretPw@h/x",
    ],
)
@pytest.mark.parametrize("engine", ["auto", "duckdb", "sqlite"])
def test_no_message_holds_a_password(url: str, engine: str) -> None:
    said = CliRunner().invoke(app, ["sql", "SELECT 1", "--db", url, "--engine", engine])
    assert said.exit_code == exit_codes.DATABASE
    assert "S3cretPw" not in said.output and said.stderr.count("\n") == 1


COLUMNS = ["id", "name", "amount", "note"]
ROWS_TABLES = [[1, "a rather long name of something", 12345.5, "x" * 70], [2, None, None, "[/b] :smile: \x1b[2J"]]


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_pipe_gets_every_value_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """`bench` in a pipe once printed "decod..." and "jacob..."."""
    tables.print_table(COLUMNS, ROWS_TABLES)
    text = printed(capsys)
    for value in ("a rather long name of something", "x" * 70, "12345.5", r"[/b] :smile: \x1b[2J"):
        assert value in text


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_a_terminal_gets_what_fits_and_is_told_what_does_not(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "console", lambda: Console(width=width))
    tables.print_table(COLUMNS, ROWS_TABLES)
    text = printed(capsys)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    assert "…" not in text
    whole = " ".join(text.replace("┃", " ").split())
    for name in COLUMNS:
        assert name in whole  # as a heading, or among those that do not fit
    assert ("do not fit" in whole) == (width < 50)


def test_numbers_stand_at_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(["n", "t"], [[5, "a"], [12345, "b"]])
    assert "│     5 │ a │" in printed(capsys)


def test_a_pipe_gets_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    """`doctor` once showed 20 of its 22 rows."""
    output.print_rows(["n"], [[number] for number in range(50)])
    text = printed(capsys)
    assert all(f"│ {number:2} │" in text for number in range(50))


def test_bars_stand_for_one_amount_beside_a_text() -> None:
    kinds = ("text", "digits", "amount")
    rows = [("a", 1, 8), ("b", 2, 4), ("c", 3, None), ("d", 4, 1)]
    assert [len(bar) for bar in output._bars(rows, kinds)] == [12, 6, 0, 2]
    assert output._bars(rows[:2], kinds) == []
    assert output._bars([*rows, ("e", 5, -1)], kinds) == []
    assert output._bars([("e", 5, float("nan")), *rows], kinds) == []
    assert output._bars(rows, ("text", "amount", "amount")) == []


def test_timing_is_one_line() -> None:
    """An estimate of plain decoding's time once made it say "1.1x slower" of an answer that took a quarter of the passes."""
    step = {"decoder": "jacobi", "target_forwards": 1, "plain_forwards": 4}
    tool = {"decoder": ""}
    assert output.timing({"total_ms": 1000.0, "steps": [step, tool]}) == "1.0 s, 1 pass instead of 4"
    assert output.timing({"total_ms": 1000.0, "steps": [step | {"plain_forwards": 1}]}) == "1.0 s"
    assert output.timing({"total_ms": 1000.0, "steps": [tool]}) == "1.0 s"


TITLE = "\x1b]0;owned\x07"
C1, TURNED = "\x9b31m", "\u202eabc"
ATTACK = f"a{TITLE}b{C1}c{TURNED}\r"


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """A database whose cells, tables and columns hold escapes."""
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as connection:
        connection.execute(f'CREATE TABLE "t{TITLE}" ("x{TITLE}" TEXT)')
        connection.execute(f'INSERT INTO "t{TITLE}" VALUES (?)', (ATTACK,))
        connection.commit()
    return str(tmp_path / "s.sqlite")


def _on_a_terminal(*arguments: str) -> str:
    """What a command writes to a terminal, by stdout and stderr."""
    owner, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", "from app.cli import app; app()", *arguments],
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    ):
        os.close(terminal)
        found = b""
        with suppress(OSError):  # the end of a terminal
            while piece := os.read(owner, 4096):
                found += piece
        os.close(owner)
    return found.decode()


@pytest.mark.parametrize("kind", [[], ["--csv"], ["--json"]], ids=["table", "csv", "json"])
@pytest.mark.parametrize("sql", ['SELECT * FROM "t{}"', 'SELECT nothing FROM "t{}"', 'SELECT * FROM "no{}"'])
def test_no_escape_of_the_data_reaches_a_terminal(hostile: str, kind: list[str], sql: str) -> None:
    said = _on_a_terminal("sql", sql.format(TITLE), "--db", hostile, "--engine", "sqlite", *kind)
    assert said.strip()
    assert not any(each in said for each in ("\x1b]", "\x07", "\x9b", "\u202e")), repr(said)


def test_a_pipe_gets_csv_as_it_is(hostile: str) -> None:
    said = CliRunner().invoke(app, ["sql", f'SELECT * FROM "t{TITLE}"', "--db", hostile, "--engine", "sqlite", "--csv"])
    assert ATTACK in said.stdout


def test_json_means_the_same() -> None:
    value = {"cell": ATTACK + "\U000e0041\x7f"}
    text = in_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert shown(text) == text


def test_cells_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """rich raises an error for a closing tag that nothing opened."""
    output.print_rows(["[bold]a"], [["[/nothing]"], ["[link=https://evil.example]x[/link]"]])
    said = capsys.readouterr().out
    assert "[bold]a" in said and "[/nothing]" in said and "[link=https://evil.example]x[/link]" in said


def test_what_people_write_stays() -> None:
    for text in ("naïve", "日本語", "a\tb\nc", "👩\u200d💻", "می\u200cخواهم", "½ € — “quoted”"):
        assert shown(text) == text


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
    once = [
        "--no-constrain",
        "--attempts",
        "1",
        "--schema-permutations",
        "1",
    ]  # what a random model writes is not looked at
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
