"""Guards training with sharded optimiser states: the same run as with all of them in each process, in less memory."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.training_data import agent_groups
from tests.decoding.ranks import in_processes
from tests.decoding.training.training_process import train_as_rank
from training.config import LoraConfig, TrainConfig, TrainingError
from training.loop import train
from training.run import progress
from training.run.base import Base, load_base
from training.run.progress import read_log

FULL = TrainConfig(
    lora=None, steps=4, learning_rate=3e-3, warmup=0.25, pack_tokens=160, accumulate=2, dtype="fp32", device="cpu"
)
SHARDED = replace(FULL, sharded=True)
GROUPS = agent_groups(3, 4)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    odd = {"intermediate_size": 51, "vocab": 321}  # so that parts are filled up
    return load_base(str(tiny_checkpoint(tmp_path_factory.mktemp("tiny"), **odd)))


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in read_log(folder) if "loss" in record]


def masters(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "checkpoint.pt")["weights"]  # type: ignore[no-any-return]


def close(found: dict[str, Tensor], wanted: dict[str, Tensor], atol: float) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name], wanted[name], atol=atol, rtol=1e-3)


def test_two_processes_with_parts_equal_one_with_all(base: Base, tmp_path: Path) -> None:
    """Same losses, checkpoint and model; and each process holds half of the two moments and of the masters."""
    two, one = tmp_path / "two", tmp_path / "one"
    folder, whole = str(base.folder), replace(FULL, accumulate=4)
    in_processes(2, train_as_rank, SHARDED, folder, str(two))
    in_processes(1, train_as_rank, whole, folder, str(one))
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    close(masters(two), masters(one), atol=1e-4)
    close(load_file(two / "model" / "model.safetensors"), load_file(one / "model" / "model.safetensors"), atol=1e-4)
    weights = sum(tensor.numel() for tensor in masters(one).values())
    held = {path: int(path.read_text()) for out in (one, two) for path in out.glob("held-*")}
    expected = held.pop(one / "held-0") - 12 * weights + (4 + 12 / 2) * weights
    assert len(held) == 2
    for found in held.values():
        assert found == pytest.approx(expected, rel=0.1)


def test_masters_stay_in_fp32_where_the_model_computes_in_bf16(tmp_path: Path) -> None:
    """Guards against an update of the copies, which would round steps as small as these away."""
    base = load_base(str(tiny_checkpoint(tmp_path / "bf16", dtype=torch.bfloat16)))
    small = {"dtype": "bf16", "learning_rate": 1e-5, "steps": 2}
    train(replace(FULL, **small), base, GROUPS, tmp_path / "whole")
    train(replace(SHARDED, **small), base, GROUPS, tmp_path / "parts")
    close(masters(tmp_path / "parts"), masters(tmp_path / "whole"), atol=2e-5)
    copies = load_file(tmp_path / "parts" / "model" / "model.safetensors")
    moved = masters(tmp_path / "parts")
    assert any((moved[name] != copies[name].float()).float().mean() > 0.9 for name in moved)


def test_a_sharded_run_goes_on_whole(base: Base, tmp_path: Path) -> None:
    """The checkpoint holds everything in full, so that it does not say how it was trained."""
    asked = iter((False, False, True))
    train(SHARDED, base, GROUPS, tmp_path / "mixed", stopped=lambda: next(asked))
    assert progress.exists(tmp_path / "mixed")
    train(FULL, base, GROUPS, tmp_path / "mixed", resume=True)
    train(FULL, base, GROUPS, tmp_path / "whole")
    assert losses(tmp_path / "mixed") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    close(masters(tmp_path / "mixed"), masters(tmp_path / "whole"), atol=1e-5)


def test_low_rank_runs_are_not_sharded() -> None:
    with pytest.raises(TrainingError, match="--full"):
        replace(SHARDED, lora=LoraConfig())
