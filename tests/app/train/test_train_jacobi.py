"""`sqlagent train jacobi`: from groups to trajectories to an adapter, and a second round from that adapter."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli import app
from app.shared import exit_codes
from decoding.checkpoints.adapter import read_adapter
from tests.decoding.models.jacobi_data import ending_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.packs.groups import group_line
from training.run.progress import read_log

SMALL = ("--pack-tokens", "256", "--dtype", "fp32", "--rank", "4", "--accumulate", "1", "--steps", "2")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(ending_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "groups.jsonl"
    path.write_text("".join(map(group_line, agent_groups(3, 2))), encoding="utf-8")
    return str(path)


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["train", "jacobi", *args])


def collected(tiny: str, groups: str, out: Path, *more: str) -> Result:
    arguments = ("--data", groups, "--model", tiny, "--out", str(out), "--max-new-tokens", "30", "--dtype", "fp32")
    return run("collect", *arguments, *more)


def test_two_rounds(tiny: str, groups: str, tmp_path: Path) -> None:
    """The second collects with the first one's adapter and larger blocks, and trains on from it."""
    adapter: tuple[str, ...] = ()
    start: tuple[str, ...] = ("--gold", groups, "--stop-token", "<|im_end|>")
    for number, (size, method) in enumerate((("4", "cllm"), ("8", "jacobi_forcing"))):
        data, out = tmp_path / f"data{number}", tmp_path / f"run{number}"
        result = collected(tiny, groups, data, "--block-size", size, *adapter)
        counts = json.loads(result.stdout.splitlines()[-1])
        assert (
            result.exit_code == exit_codes.OK and counts["finished"] and counts["prompts"] == 12 and counts["kept"] > 0
        )
        again = json.loads(collected(tiny, groups, data, "--block-size", size, *adapter).stdout.splitlines()[-1])
        assert (again["prompts"], again["finished"]) == (0, True)
        arguments = ("--data", counts["out"], "--held-out", counts["out"], "--model", tiny, "--out", str(out))
        result = run(*arguments, "--method", method, "--window", "4", *SMALL, *start)
        assert result.exit_code == exit_codes.OK, result.output
        outcome = json.loads(result.stdout.splitlines()[-1])
        assert (outcome["steps"], outcome["finished"]) == (2, True) and "stationary" in outcome["held_out"]
        assert "consistency" in read_log(out)[0]
        about = read_adapter(out / "adapter").about
        assert about.notes["jacobi"]["method"] == method
        assert about.notes["jacobi"]["gold"] == (["groups.jsonl"] if number == 0 else [])
        adapter, start = ("--adapter", str(out / "adapter")), ("--init-adapter", str(out / "adapter"))


def test_what_cannot_be_is_one_line(tiny: str, groups: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    cases = [
        (("--out", out), "training needs --data"),
        (("--data", groups, "--out", out, "--model", tiny, *SMALL), "holds no trajectories"),
        (("--data", groups, "--out", out, "--model", tiny), "a run needs an end"),
        (("collect", "--data", groups, "--out", out, "--model", "/nowhere"), "nowhere"),
    ]
    for arguments, message in cases:
        result = run(*arguments)
        assert result.exit_code in (exit_codes.USAGE, exit_codes.MODEL) and message in result.stderr, result.stderr
    collected(tiny, groups, tmp_path / "data", "--limit", "2")
    result = collected(tiny, groups, tmp_path / "data", "--block-size", "5")
    assert result.exit_code == exit_codes.USAGE and "another block_size" in result.stderr.splitlines()[-1]
