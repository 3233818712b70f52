"""`sqlagent train head`: the four commands one after another on a tiny model, and a published head brought in."""

import json
from pathlib import Path
from typing import Any
from warnings import warn

import pytest
import torch
import typer
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from app.train.train_all import HEADS
from decoding.heads.head import OtherTarget, load_head
from decoding.heads.kinds import KINDS
from tests.decoding.models.jacobi_data import ending_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.packs.groups import group_line


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(ending_checkpoint(tmp_path_factory.mktemp("model") / "tiny"))


def ran(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["train", "head", *map(str, arguments)])
    assert result.exit_code == exit_codes.OK, result.output
    told: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return told


def test_from_prompts_to_a_head_in_four_bits(model: str, tmp_path: Path) -> None:
    data = tmp_path / "groups.jsonl"
    data.write_text("".join(group_line(group) for group in agent_groups(3, 6)))
    on = ("--model", model, "--device", "cpu")
    told = ran("collect", "--data", data, "--out", tmp_path / "r", "--samples", 1, "--max-new-tokens", 30, *on)
    assert told["finished"] and told["kept"] > 5
    responses = tmp_path / "r" / "responses.jsonl"
    told = ran("features", "--data", responses, "--out", tmp_path / "f", "--pack-tokens", 256, *on)
    assert told["finished"]
    run = (
        "--method",
        "medusa",
        "--data",
        tmp_path / "f",
        "--out",
        tmp_path / "run",
        "-o",
        "heads=2",
        "--steps",
        2,
        *on,
    )
    assert ran(*run)["finished"]
    assert ran(*run, "--resume")["steps"] == 2
    told = ran("export", tmp_path / "run" / "head", "--data", responses, "--out", tmp_path / "out", "--limit", 2, *on)
    assert told["prompts"] == 2 and told["bytes"] < 20_000
    head = load_head(tmp_path / "out")
    assert (head.config.kind, head.size("heads")) == ("medusa", 2)
    assert head.identity is not None and head.identity.prompt_hash is not None


def test_mistakes_are_one_line(model: str, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for arguments, said in (
        (["--method", "x", "--data", tmp_path / "f", "--out", tmp_path / "o", "--steps", 1], "choose one of"),
        (["--method", "medusa", "--data", tmp_path / "f", "--out", tmp_path / "o", "--steps", 1], "features.json"),
        (["--method", "medusa", "--steps", 1], "needs --method, --data and --out"),
    ):
        result = CliRunner().invoke(app, ["train", "head", *map(str, arguments), "--model", model])
        assert result.exit_code != exit_codes.OK
        assert said in " ".join(result.output.split())


def test_a_published_head_becomes_ours(model: str, tmp_path: Path) -> None:
    tensors = {f"{i}.0.linear.{name}": torch.randn(*shape) for i in range(2) for name, shape in SHAPES.items()}
    (tmp_path / "theirs").mkdir()
    torch.save(tensors, tmp_path / "theirs" / "medusa_lm_head.pt")
    told = ran("import", tmp_path / "theirs", "--out", tmp_path / "ours", "--model", model, "--storage", "fp32")
    assert told["kind"] == "medusa"
    got = load_head(tmp_path / "ours").state_dict()["blocks.1.linear.weight"]
    torch.testing.assert_close(got, tensors["1.0.linear.weight"])


SHAPES = {"weight": (32, 32), "bias": (32,)}


def test_every_head_that_can_be_trained_is_a_stage_of_its_recipe() -> None:
    assert set(HEADS) == set(KINDS)


def test_a_benchmark_refuses_a_head_of_another_target(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, exit_codes.plain_errors(), exit_codes.own_heads_only():
        warn(OtherTarget("this medusa head was trained on another target"), stacklevel=1)
    assert ended.value.exit_code == exit_codes.MODEL
    assert capsys.readouterr().err == "sqlagent: this medusa head was trained on another target\n"
