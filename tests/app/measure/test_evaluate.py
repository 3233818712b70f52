"""`sqlagent eval`: what is asked for reaches the agent, and what cannot be is one line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.context import AgentOptions
from app.cli import app
from app.shared import exit_codes
from app.shared.option_groups import Asking
from eval.datasets.registry import DATASETS


@pytest.mark.parametrize("name", ["constrain", "values", "hints", "repair"])
def test_every_switch_reaches_the_agent(name: str) -> None:
    """Guards ablations against a row that measures the default once more."""
    default = AgentOptions(present=False, second_look=True)  # what people see of a result is not measured
    assert Asking().agent_options() == default
    assert not Asking(second_look=False).agent_options().second_look
    assert not Asking().agent_options(second_look=False).second_look
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
