"""The command as a process: streams that are closed, full or of few signs, a killed owner, and what nobody expected.

Each ends in one line and a documented exit code; before, each was a traceback.
"""

import os
import signal
import stat
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.observe.audit import AuditLog, Wanted
from app.cli import app
from app.shared import exit_codes

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-c", "from app.cli import main; main()"]
ROWS = "SELECT range AS a FROM range(20000)"


def sqlagent(*arguments: str, shell: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it as a process, with the shell's redirections; text of stdout that is caught is UTF-8."""
    line = ["sh", "-c", f'exec "$@" {shell}', "sh", *COMMAND, *arguments]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(line, cwd=ROOT, env=given, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
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
