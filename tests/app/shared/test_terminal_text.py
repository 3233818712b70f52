"""Cells, names and messages that would steer a terminal are spelt out; what is piped to a program stays as it is."""

import json
import os
import pty
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.shared import output
from app.shared.output import in_json, shown

ROOT = Path(__file__).parents[3]
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
