"""`sqlagent train masks`: from the target's answers to an adapter that decoding uses."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from decoding.checkpoints.adapter import About, Adapter, write_adapter
from decoding.checkpoints.mask_adapter import FILE, read_mask_adapter
from decoding.serving.load import load_text_decoder
from tests.decoding.models.jacobi_data import ending_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.config import LoraConfig
from training.packs.groups import group_line
from training.run.base import load_base
from training.run.gpu_model import new_factors


def ran(*arguments: object, code: int = exit_codes.OK) -> Any:
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout.splitlines()[-1]) if code == exit_codes.OK else " ".join(result.output.split())


def adapted(folder: Path) -> tuple[str, Path]:
    """A tiny model, and a folder with an adapter for it."""
    model = str(ending_checkpoint(folder / "tiny"))
    base = load_base(model)
    shapes = {"model.layers.0.mlp.down_proj": [base.config.hidden_size, base.config.intermediate_size]}
    factors = new_factors(shapes, LoraConfig(rank=2), seed=0)
    write_adapter(Adapter(factors, 2, 4.0, About(base.name, base.sha256, 2)), folder / "adapter")
    return model, folder / "adapter"


def test_from_answers_to_masks_beside_the_targets_adapter(tmp_path: Path) -> None:
    model, adapter = adapted(tmp_path)
    data = tmp_path / "groups.jsonl"
    data.write_text("".join(group_line(group) for group in agent_groups(3, 6)))
    on = ("--model", model, "--adapter", adapter, "--device", "cpu")
    ran("head", "collect", "--data", data, "--out", tmp_path / "r", "--max-new-tokens", 30, *on)
    responses = tmp_path / "r" / "responses.jsonl"
    options = ("--depths", 2, "--rank", 3, "--steps", 2, "--pack-tokens", 256, "--dtype", "fp32", *on)
    told = ran("masks", "--data", responses, "--out", tmp_path / "m", "--into", adapter, *options)
    assert told["finished"] and told["steps"] == 2
    found = read_mask_adapter(adapter)
    assert found is not None and (found.depths, found.rank) == (2, 3)
    told = ran("beginnings", "--data", responses, "--into", adapter, "--least", 2)
    begun = read_mask_adapter(adapter)
    assert begun is not None and begun.pairs is not None and begun.pairs.beginnings is not None
    assert told["ends"] == len(begun.pairs.beginnings.ends) > 0 and max(told["right"]) > 0.5
    assert "lower --least" in ran("beginnings", "--data", responses, "--into", adapter, code=exit_codes.USAGE)
    decoder = load_text_decoder(model, dtype="fp32", device="cpu", adapter=adapter)
    assert len(decoder.target.mask_tokens) == 2
    assert ran("masks", "--data", responses, "--out", tmp_path / "m", *options, "--resume")["steps"] == 2
    (adapter / FILE).unlink()
    assert len(load_text_decoder(model, dtype="fp32", device="cpu", adapter=adapter).target.mask_tokens) == 0


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    model = str(ending_checkpoint(tmp_path / "tiny"))
    data = tmp_path / "groups.jsonl"
    data.write_text("".join(group_line(group) for group in agent_groups(1, 2)))
    on = ("--model", model, "--device", "cpu", "--out", tmp_path / "m", "--steps", 1)
    assert "holds no responses" in ran("masks", "--data", data, *on, code=exit_codes.USAGE)
    told = ran("beginnings", "--data", data, "--into", tmp_path / "tiny", code=exit_codes.USAGE)
    assert "has no masks with scores of pairs" in told
    assert "--depths" in ran("masks", "--data", data, "--depths", 0, *on, code=exit_codes.USAGE)
