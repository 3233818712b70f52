"""`sqlagent eval`: what is asked for reaches the agent, and what cannot be is one line.

`sqlagent ablate`: which rows the options ask for, and a kind of rows that there is not.

`sqlagent bench gpu` where there is no GPU.
"""

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
from eval.datasets.registry import DATASETS


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
