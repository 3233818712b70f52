"""Whole runs on tiny models: they are the same when repeated, interrupted or run on two processes, and are worth decoding."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding.checkpoints.adapter import About, AdapterMismatch, read_adapter, write_adapter
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.loop import Request, decode
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.training_data import agent_groups
from tests.decoding.ranks import in_processes
from tests.decoding.training.training_process import train_as_rank
from training.config import LoraConfig, TrainConfig, TrainingError
from training.loop import Outcome, train
from training.packs.groups import Group, Pair
from training.run.base import Base, factorised, load_base
from training.run.progress import learning_rate, length_of, read_log

LORA = LoraConfig(rank=4, alpha=8.0)
CONFIG = TrainConfig(
    lora=LORA, steps=8, learning_rate=1e-2, warmup=0.25, pack_tokens=160, accumulate=2, dtype="fp32", device="cpu"
)
GROUPS = agent_groups(3, 4)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(str(tiny_checkpoint(tmp_path_factory.mktemp("tiny"))))


def stop_after(steps: int) -> Callable[[], bool]:
    """Asked before every step."""
    asked = iter(range(steps))
    return lambda: next(asked, None) is None


def curve(folder: Path) -> list[dict[str, Any]]:
    """The records of steps, less their times."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_log(folder) if "loss" in record]


def result(folder: Path) -> dict[str, torch.Tensor]:
    adapter = read_adapter(folder / "adapter")
    return {f"{m}.{part}": getattr(f, part) for m, f in adapter.factors.items() for part in "ab"}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_two_runs_are_bit_identical_and_a_seed_matters(base: Base, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(replace(CONFIG, seed=seed), base, GROUPS, tmp_path / name)
    assert curve(tmp_path / "a") == curve(tmp_path / "b") != curve(tmp_path / "c")
    assert same(result(tmp_path / "a"), result(tmp_path / "b"))


@pytest.mark.parametrize("lora", [LORA, None])
@pytest.mark.parametrize("after", [1, 5])
def test_a_resumed_run_is_one_that_was_never_stopped(
    base: Base, tmp_path: Path, after: int, lora: LoraConfig | None
) -> None:
    """Bit for bit: weights, optimiser, order of data, rate and log. Stopped within an epoch and beyond one."""
    config = replace(CONFIG, lora=lora, learning_rate=2e-3)
    train(config, base, GROUPS, tmp_path / "whole")
    first = train(config, base, GROUPS, tmp_path / "parts", stopped=stop_after(after))
    assert (first.steps, first.finished) == (after, False)
    second = train(config, base, GROUPS, tmp_path / "parts", resume=True)
    assert (second.steps, second.finished) == (8, True)
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    if lora:
        assert same(result(tmp_path / "parts"), result(tmp_path / "whole"))
    else:
        assert same(*(dict(read_weights(tmp_path / name / "model")) for name in ("parts", "whole")))


def test_a_kill_between_checkpoints_costs_the_steps_since(base: Base, tmp_path: Path) -> None:
    """The log is ahead of the checkpoint then; resumed, it holds each step once."""

    class Killed(BaseException):
        pass

    asked = iter(range(5))

    def killer() -> bool:
        if next(asked, None) is None:
            raise Killed
        return False

    with pytest.raises(Killed):
        train(replace(CONFIG, checkpoint_steps=3), base, GROUPS, tmp_path / "run", stopped=killer)
    assert len(curve(tmp_path / "run")) == 5
    train(CONFIG, base, GROUPS, tmp_path / "run", resume=True)
    train(CONFIG, base, GROUPS, tmp_path / "whole")
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")


@pytest.mark.parametrize("change", [{"seed": 5}, {"learning_rate": 1e-3}, {"accumulate": 1}, {"lora": None}])
def test_another_run_is_not_resumed(base: Base, tmp_path: Path, change: dict[str, Any]) -> None:
    train(replace(CONFIG, steps=1), base, GROUPS, tmp_path)
    with pytest.raises(TrainingError, match="resume it"):
        train(CONFIG, base, GROUPS, tmp_path)
    with pytest.raises(TrainingError, match="another"):
        train(replace(CONFIG, **change), base, GROUPS, tmp_path, resume=True)
    with pytest.raises(TrainingError, match="another data"):
        train(CONFIG, base, GROUPS[:1], tmp_path, resume=True)


def test_a_budget_of_time_ends_the_run_with_the_rate_down(base: Base, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=None, minutes=1.5 / 60)
    outcome = train(config, base, GROUPS, tmp_path)
    records = curve(tmp_path)
    assert outcome.finished and outcome.steps == len(records) > 8
    assert 1.5 <= outcome.seconds < 4
    assert records[-1]["learning_rate"] < 0.5 * max(record["learning_rate"] for record in records)


def test_the_schedule_rises_and_falls_once() -> None:
    length = length_of(CONFIG, packs=10, packs_per_step=4)
    rates = [learning_rate(CONFIG, length.progress(step, 0.0)) for step in range(9)]
    assert rates[0] == 0.0 and rates[2] == CONFIG.learning_rate == max(rates)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] == pytest.approx(CONFIG.learning_rate * CONFIG.final_rate)
    assert length_of(replace(CONFIG, steps=None, epochs=2), 10, 4).steps == 5
    with pytest.raises(TrainingError, match="needs an end"):
        TrainConfig()
    with pytest.raises(TrainingError, match="only low-rank"):
        TrainConfig(steps=1, lora=None, init_adapter=Path("adapter"))


def test_validation_is_logged_and_the_best_is_kept(base: Base, tmp_path: Path) -> None:
    config = replace(CONFIG, validate_steps=3, learning_rate=0.05)
    outcome = train(config, base, GROUPS, tmp_path, held_out=agent_groups(1, 3, seed=9))
    records = [record for record in read_log(tmp_path) if "held_out" in record]
    assert [record["step"] for record in records] == [3, 6, 8]
    assert {"loss", "exact", "loss_plan", "exact_generate"} <= records[-1]["held_out"].keys()
    assert outcome.held_out == records[-1]["held_out"]
    losses = [record["held_out"]["loss"] for record in records]
    assert (losses[-1] == min(losses)) == (
        (tmp_path / "best" / "adapter_model.safetensors").read_bytes()
        == (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    )


def test_training_goes_on_from_an_adapter(base: Base, tmp_path: Path) -> None:
    """Across machines: from a committed int8 adapter, whose rank and modules hold, with the rate warmed up again."""
    config = replace(CONFIG, steps=40, learning_rate=0.02)
    first = train(config, base, GROUPS, tmp_path / "first", prompt_version=7)
    write_adapter(read_adapter(tmp_path / "first" / "adapter"), tmp_path / "shipped")
    again = replace(config, init_adapter=tmp_path / "shipped", lora=LoraConfig(rank=9), learning_rate=1e-4)
    train(again, base, GROUPS, tmp_path / "second", prompt_version=8)
    records = curve(tmp_path / "second")
    assert records[0]["loss"] == pytest.approx(first.loss, abs=0.5)
    assert records[0]["loss"] < curve(tmp_path / "first")[0]["loss"] * 0.6
    assert records[0]["learning_rate"] < records[5]["learning_rate"]
    written = read_adapter(tmp_path / "second" / "adapter")
    assert (written.rank, written.scale, written.about.prompt_version) == (4, 2.0, 8)


def test_an_adapter_of_another_base_is_no_start(base: Base, tmp_path: Path) -> None:
    other = load_base(str(tiny_checkpoint(tmp_path / "other", seed=1)))
    train(replace(CONFIG, steps=1), other, GROUPS, tmp_path / "run")
    with pytest.raises(AdapterMismatch):
        train(replace(CONFIG, init_adapter=tmp_path / "run" / "adapter"), base, GROUPS, tmp_path / "again")


def test_pairs_that_are_too_long_are_counted_and_nothing_at_all_is_refused(base: Base, tmp_path: Path) -> None:
    long = Group("", (Pair("x " * 200, " y", "plan", "long"),))
    assert train(replace(CONFIG, steps=1), base, [*GROUPS, long], tmp_path / "a").left_out == 1
    with pytest.raises(TrainingError, match="nothing to train on"):
        train(CONFIG, base, [long], tmp_path / "b")
    longer = Group("", (Pair("x " * 600, " y", "plan", "longer than the model takes"),))
    in_large_packs = replace(CONFIG, steps=1, pack_tokens=2048)
    assert train(in_large_packs, base, [*GROUPS, longer], tmp_path / "c").left_out == 1


def test_an_adapter_grows_without_changing_what_it_does(base: Base, tmp_path: Path) -> None:
    """The first loss of a run from it is the same, and the new components learn."""
    train(replace(CONFIG, steps=2), base, GROUPS, tmp_path / "small")
    begun = replace(CONFIG, steps=2, init_adapter=tmp_path / "small" / "adapter")
    losses = [
        [record["loss"] for record in read_log(tmp_path / name)]
        for name, config in (("same", begun), ("grown", replace(begun, grow_rank=LORA.rank + 3)))
        if train(config, base, GROUPS, tmp_path / name)
    ]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5)
    adapter = read_adapter(tmp_path / "grown" / "adapter")
    assert (adapter.rank, adapter.scale) == (LORA.rank + 3, LORA.alpha / LORA.rank)
    assert any(factors.b[:, LORA.rank :].abs().max() > 0 for factors in adapter.factors.values())
    with pytest.raises(TrainingError, match="give a higher one"):
        train(replace(begun, grow_rank=1), base, GROUPS, tmp_path / "less")
    with pytest.raises(TrainingError, match="give --init-adapter"):
        replace(CONFIG, grow_rank=8)


def test_two_processes_equal_one_that_accumulates_twice_as_much(base: Base, tmp_path: Path) -> None:
    """As under torchrun, over gloo: same packs, same rate, gradients added up; and only one writes."""
    in_processes(2, train_as_rank, CONFIG, str(base.folder), str(tmp_path / "two"))
    train(replace(CONFIG, accumulate=4), base, GROUPS, tmp_path / "one")
    for two, one in zip(curve(tmp_path / "two"), curve(tmp_path / "one"), strict=True):
        assert two == pytest.approx(one, rel=1e-4)
    found, wanted = result(tmp_path / "two"), result(tmp_path / "one")
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], atol=1e-4, rtol=1e-3)


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("learner")
    return load_base(str(tiny_checkpoint(folder, hidden_size=64, intermediate_size=128, head_dim=16)))


def learnt(base: Base, groups: list[Group], lora: LoraConfig | None, out: Path) -> Outcome:
    rate = 1e-2 if lora else 3e-3
    config = TrainConfig(
        lora=lora, steps=90, learning_rate=rate, weight_decay=0.0, pack_tokens=384, accumulate=2, dtype="fp32"
    )
    return train(config, base, groups, out, held_out=groups)


def writes(model: str, adapter: Path | None, groups: list[Group]) -> float:
    """Part of the pairs that greedy decoding, through the engine, answers to the letter."""
    decoder = load_text_decoder(model, dtype="fp32", device="cpu", adapter=adapter or "none")
    tokenizer, right = decoder.tokenizer, []
    for group in groups:
        for pair in group.pairs:
            request = Request(
                prompt=tuple(tokenizer.encode(group.prefix + pair.prompt)),
                method=load_method("plain"),
                max_new_tokens=80,
                stop=tokenizer.stop_ids,
            )
            tokens = [token for r in decode(decoder.target, [request]) for token in r.committed]
            right.append(tokenizer.decode(tokens) == pair.answer and tokens[-1] in tokenizer.stop_ids)
    return sum(right) / len(right)


def test_what_was_learnt_by_heart_is_written_by_the_decoder(learner: Base, tmp_path: Path) -> None:
    """20 pairs, low-rank, through the int8 adapter, `load`, and the decode loop: prompt, packing, merging all agree."""
    groups = agent_groups(2, 5)
    outcome = learnt(learner, groups, LoraConfig(rank=16, alpha=32.0), tmp_path)
    assert outcome.held_out["loss"] < 0.05
    assert outcome.held_out["exact"] == 1.0
    write_adapter(read_adapter(tmp_path / "adapter"), tmp_path / "shipped")
    assert writes(str(learner.folder), tmp_path / "shipped", groups) == 1.0
    assert writes(str(learner.folder), None, groups) == 0.0


def test_full_training_leaves_a_model_and_its_factors(learner: Base, tmp_path: Path) -> None:
    """The whole model in hub layout decodes what it learnt, and so does its difference, factorised without loss."""
    groups = agent_groups(2, 5)
    assert learnt(learner, groups, None, tmp_path).held_out["loss"] < 0.05
    assert writes(str(tmp_path / "model"), None, groups) == 1.0
    about = About(learner.name, learner.sha256)
    write_adapter(factorised(learner, tmp_path / "model", 64, about), tmp_path / "shipped")
    assert writes(str(learner.folder), tmp_path / "shipped", groups) >= 0.95
