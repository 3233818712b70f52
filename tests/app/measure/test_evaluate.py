"""`sqlagent eval`: what is asked for reaches the agent, and what cannot be is one line.

`eval file`: one's own questions, judged by the rows of one's own SQL.

`sqlagent ablate`: which rows the options ask for, and a kind of rows that there is not.

`sqlagent bench gpu` where there is no GPU.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from agent.context import AgentOptions
from app.cli import app
from app.measure import evaluate
from app.shared import exit_codes
from app.shared.options import Asking
from eval.accuracy import ablation
from eval.accuracy.own_questions import read_questions
from eval.datasets.registry import DATASETS
from tests.app.test_cli import COUNT, run, script, singer, tiny


@pytest.mark.parametrize("name", ["constrain", "values", "hints", "repair"])
def test_every_switch_reaches_the_agent(name: str) -> None:
    """Guards ablations against a row that measures the default once more."""
    default = AgentOptions(present=False, rerank=True)  # what people see of a result is not measured
    assert Asking().agent_options() == default
    assert not Asking(rerank=False).agent_options().rerank
    assert not Asking().agent_options(rerank=False).rerank
    options = Asking(**{name: not getattr(default, name)}).agent_options()  # type: ignore[arg-type]
    changed = {field for field in AgentOptions.__slots__ if getattr(options, field) != getattr(default, field)}
    assert changed == {name}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bird", "--questions", "spider_syn"], "choose one of spider, bird, held_out, held_out/spider_syn"),
        (["held_out"], "name the folder that holds spider/"),
        (["conversation"], "Spider's folder holds dev.json"),
        (["spider", "--without-rules", "keys,walls"], "--without-rules: walls is none of meant, named, counted,"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "spider").mkdir()
    (tmp_path / "spider" / "tables.json").write_text("[]")
    result = CliRunner().invoke(app, ["eval", *arguments, "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert result.exit_code == exit_codes.USAGE
    assert says in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_bad_file_of_dialogues_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"id": "d01", "database": "example", "turns": []}\n')
    result = CliRunner().invoke(app, ["eval", "dialogues", str(file), "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.stdout) == (exit_codes.USAGE, "")
    assert result.stderr == f"sqlagent: {file}, line 1: the dialogue has no turns\n"
    assert not (tmp_path / "out").exists()


def test_every_dataset_is_a_command() -> None:
    """Guards a dataset that the command line cannot name."""
    result = CliRunner().invoke(app, ["eval", "--help"])
    assert all(name.split("/")[0] in result.stdout for name in [*DATASETS, "conversation", "dialogues"])


__all__ = ["script", "singer", "tiny"]
QUESTIONS = (
    "Question,SQL\n"
    "How many are from France?,SELECT count(*) FROM singer WHERE country IN ('France')\n"
    "How many are from Spain?,SELECT count(*) FROM singer WHERE country = 'Spain'\n"
)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.txt"
    path.write_text(QUESTIONS)
    return path


def test_verdicts_follow_the_rows(tiny: str, singer: str, script, questions: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The script says the same to both questions; only the first answer is right."""
    script(*["plan", COUNT] * 4)
    out = tmp_path / "verdicts.csv"
    asked = ("eval", "file", str(questions), "--db", singer, "--model", tiny)
    found = json.loads(run(*asked, "--json").stdout)
    assert (found["questions"], found["right"]) == (2, 1)
    assert [each["right"] for each in found["verdicts"]] == [True, False]
    printed = run(*asked, "--out", str(out))
    assert printed.exit_code == 0, printed.output
    assert "1 of 2 right: 50.0 %" in printed.stdout
    with out.open(newline="") as file:
        assert [row["right"] for row in csv.DictReader(file)] == ["True", "False"]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("question;sql\nHow many?;SELECT count(*) FROM t\n", "utf-8"),
        ("question;sql\nHow many – really?;SELECT count(*) FROM t\n", "cp1252"),
        ("question\tsql\nHow many – really?\tSELECT count(*) FROM t\n", "utf-16"),
    ],
)
def test_questions_are_read_as_a_spreadsheet_wrote_them(tmp_path: Path, text: str, encoding: str) -> None:
    path = tmp_path / "questions.csv"
    path.write_bytes(text.encode(encoding))
    [question] = read_questions(path)
    assert question.question in ("How many?", "How many – really?") and question.sql == "SELECT count(*) FROM t"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "the columns question and sql"),
        ("question,sql\n", "no questions"),
        ("question,sql\nHow many?,\n", "line 2 lacks"),
        ("question,sql\nHow many?,SELECT nonsense FROM singer\n", "line 2: its SQL does not run"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tiny: str, singer: str, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "questions.csv"
    path.write_text(text)
    result = run("eval", "file", str(path), "--db", singer, "--model", tiny)
    assert result.exit_code == exit_codes.USAGE
    assert says in result.stderr
    assert run("eval", "file", str(tmp_path / "none.csv"), "--db", singer).exit_code == exit_codes.USAGE


def _run(tmp_path: Path, *arguments: str) -> Result:
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    return CliRunner().invoke(app, ["ablate", "spider", "--data", str(tmp_path), "--out", str(out), *arguments])


@pytest.mark.parametrize(
    ("arguments", "first", "last"),
    [
        ((), "base model, plan and SQL", "without spelling"),
        (("--rows", "parts"), "base model, plan and SQL", "+ second look"),
        (("--rows", "without"), "default agent", "without spelling"),
    ],
)
def test_the_options_choose_the_rows(
    arguments: tuple[str, ...],
    first: str,
    last: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def measured(questions: Any, choice: Any, load: Any, rows: Any, out: Path, **more: Any) -> list[Any]:
        asked.extend(rows)
        return []

    monkeypatch.setattr(ablation, "ablate", measured)
    monkeypatch.setattr(evaluate, "load_dataset", lambda *args, **more: [])
    result = _run(tmp_path, *arguments)
    assert result.exit_code == exit_codes.OK, result.output
    assert json.loads(result.stdout.splitlines()[-1]) == []
    assert (asked[0].name, asked[-1].name) == (first, last)
    assert (tmp_path / "out" / "table.md").exists()


@pytest.mark.parametrize(("rows", "says"), [("parts,walls", "walls is none of"), (",", "nothing is none of")])
def test_an_unknown_kind_of_rows_is_told(rows: str, says: str, tmp_path: Path) -> None:
    result = _run(tmp_path, "--rows", rows)
    assert result.exit_code == exit_codes.USAGE and says in result.stderr and "without" in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_ends_in_one_line() -> None:
    result = CliRunner().invoke(app, ["bench", "gpu"])
    assert result.exit_code == exit_codes.USAGE
    assert result.stdout == ""
    assert result.stderr.startswith("sqlagent: bench gpu needs a CUDA GPU")
    assert result.stderr.count("\n") == 1
