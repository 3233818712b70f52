"""What Jacobi training learns and from which teacher; a resumed run is the same bit for bit, and decoding gets faster."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from decoding.checkpoints.weight_files import read_weights
from decoding.engine.loop import Request, decode
from decoding.engine.rounds import measure
from decoding.methods.registry import load_method
from tests.decoding.models.jacobi_data import collected, decoder_of, ending_checkpoint, invented_trajectories
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.training_data import agent_groups
from tests.decoding.ranks import in_processes
from tests.decoding.training.training_process import train_as_rank
from training.config import LoraConfig, TrainConfig, TrainingError
from training.jacobi.states import (
    JacobiBuilder,
    JacobiConfig,
    JacobiPack,
    chains,
    examples,
    first_difference,
    jacobi_loss,
    jacobi_objective,
    jacobi_values,
    risen,
)
from training.jacobi.trajectory import Trajectory
from training.loop import train
from training.objective import answers
from training.packs.packing import Pack, fill
from training.run.base import Base, load_base, pack_loss, ready_model
from training.run.progress import read_log

METHODS = {
    "forcing": JacobiConfig(window=3, draws=2, ar_weight=1.0),
    "paper": JacobiConfig(window=3, shift=False, ar_weight=10.0, consistency_weight=0.5),
    "cllm": JacobiConfig(method="cllm", draws=2),
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(str(tiny_checkpoint(tmp_path_factory.mktemp("tiny"), vocab=330)))


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    return invented_trajectories()


def packed(trajectories: list[Trajectory], how: JacobiConfig, rows: int = 500) -> list[JacobiPack]:
    packs, left_out = fill(list(examples(trajectories, how, seed=0).values()), rows, 0, JacobiBuilder)
    assert left_out == 0 and all(one.rows <= rows for one in packs)
    return packs


Run = Callable[[list[int]], Tensor]


def slow_terms(how: JacobiConfig, run: Run, trajectories: list[Trajectory]) -> list[Tensor]:
    """Both terms, every text run alone. `run`: logits [tokens, vocab] of a text."""
    nats, blocks = [], []
    for one in trajectories:
        prompt, answer = list(one.prompt_ids), list(one.answer_ids)
        clean = run(prompt + answer)
        nats.append(functional.cross_entropy(clean[len(prompt) - 1 : -1], torch.tensor(answer), reduction="none"))
        for chain in chains(one, how, Random(f"0 {one.prompt}")):
            before = prompt + answer[: chain.start]
            student = run(before + list(chain.tokens))
            start = chain.start
            for state in chain.blocks:
                fixed = answer[start : start + len(state)]
                first, stop = start + first_difference(state, fixed), min(start + len(state), len(answer) - 1)
                if first < stop:
                    rows = slice(len(prompt) + first, len(prompt) + stop)
                    wanted = clean[rows].detach().softmax(-1)
                    blocks.append(functional.cross_entropy(student[rows], wanted))
                start += len(state)
    return [how.ar_weight * torch.cat(nats).mean(), how.consistency_weight * torch.stack(blocks).mean()]


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_is_that_of_every_text_alone(base: Base, trajectories: list[Trajectory], name: str) -> None:
    """By transformers, without packing: both terms, and the gradient of their sum, which must not go through the teacher. In
    packs of two sizes, which share a step."""
    how, theirs = METHODS[name], AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32).eval()
    wanted = slow_terms(how, lambda tokens: theirs(torch.tensor([tokens])).logits[0], trajectories)
    sum(wanted, torch.zeros(())).backward()
    gradients = {key: tensor.grad for key, tensor in theirs.named_parameters() if tensor.dim() > 1}
    for rows in (60, 500):
        model = ready_model(base, None, torch.float32, torch.device("cpu"))
        packs = packed(trajectories, how, rows)
        assert (len(packs) > 1) == (rows == 60)
        terms = torch.stack([jacobi_loss(how, model, pack, packs) for pack in packs]).sum(0)
        torch.testing.assert_close(terms, torch.stack(wanted), atol=1e-4, rtol=1e-5)
        terms.sum().backward()  # type: ignore[no-untyped-call]
        for key, tensor in model.trained.items():
            torch.testing.assert_close(tensor.grad, gradients[key], atol=2e-4, rtol=1e-3, msg=key)
        values = jacobi_values(how, model, packs)
        assert values["loss"] == pytest.approx(float(terms.detach().sum()), rel=1e-4)
        assert values["ar"] * how.ar_weight == pytest.approx(float(wanted[0].detach()), rel=1e-4)


def test_a_pack_without_a_wrong_token_is_learnt_from_too(base: Base, trajectories: list[Trajectory]) -> None:
    """One short block whose schedule gives it no noise."""
    how = JacobiConfig(shift=False)
    model = ready_model(base, None, torch.float32, torch.device("cpu"))
    [pack] = packed(trajectories[:1], how)
    assert len(pack.teachers) == 0
    answers, consistency = jacobi_loss(how, model, pack, [pack])
    assert answers > 0 and consistency == 0
    assert jacobi_values(how, model, [pack])["stationary"] == 0.0


def test_stationary_counts_what_the_clean_text_agrees_with(base: Base, trajectories: list[Trajectory]) -> None:
    """Teachers' own rows as students: all agree."""
    how = METHODS["forcing"]
    [pack] = packed(trajectories, how)
    model = ready_model(base, None, torch.float32, torch.device("cpu"))
    assert jacobi_values(how, model, [pack])["stationary"] < 0.5
    first, sources = len(pack.targets), pack.sources.copy()
    sources[first : first + len(pack.teachers)] = sources[pack.teachers]
    assert jacobi_values(how, model, [replace(pack, sources=sources)])["stationary"] == 1.0


CONFIG = TrainConfig(
    lora=LoraConfig(rank=4, alpha=8.0),
    steps=6,
    learning_rate=2e-3,
    warmup=0.25,
    pack_tokens=100,
    accumulate=2,
    dtype="fp32",
    device="cpu",
)


def run(
    base: Base, out: Path, data: list[Trajectory], how: JacobiConfig, config: TrainConfig = CONFIG, **more: Any
) -> list[dict[str, Any]]:
    """The log, less its times."""
    train(config, base, data, out, objective=partial(jacobi_objective, how), **more)
    return [{key: value for key, value in record.items() if key != "seconds"} for record in read_log(out)]


@pytest.mark.parametrize("lora", [CONFIG.lora, None])
def test_a_resumed_run_is_one_that_was_never_stopped(
    base: Base, tmp_path: Path, trajectories: list[Trajectory], lora: LoraConfig | None
) -> None:
    """Bit for bit, within an epoch and beyond one."""
    config, asked = replace(CONFIG, lora=lora), iter(range(3))
    how = METHODS["forcing" if lora else "cllm"]
    whole = run(base, tmp_path / "whole", trajectories, how, config, held_out=trajectories[:2])
    run(base, tmp_path / "parts", trajectories, how, config, stopped=lambda: next(asked, None) is None)
    assert len([record for record in read_log(tmp_path / "parts") if "loss" in record]) == 3
    parts = run(base, tmp_path / "parts", trajectories, how, config, resume=True, held_out=trajectories[:2])
    assert parts == whole
    assert whole[0]["loss"] == pytest.approx(whole[0]["ar"] + whole[0]["consistency"])
    assert {"loss", "ar", "consistency", "stationary", "exact_plan"} <= whole[-1]["held_out"].keys()
    if lora:
        file = Path("adapter") / "adapter_model.safetensors"
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    else:
        after = [dict(read_weights(tmp_path / name / "model")) for name in ("parts", "whole")]
        assert all(torch.equal(after[0][name], after[1][name]) for name in after[1])


def test_two_processes_equal_one_that_accumulates_twice_as_much(
    base: Base, tmp_path: Path, trajectories: list[Trajectory]
) -> None:
    """As under torchrun, over gloo. Both terms are means over the packs of all processes."""
    in_processes(2, train_as_rank, CONFIG, str(base.folder), str(tmp_path / "two"), METHODS["paper"])
    one = run(base, tmp_path / "one", trajectories, METHODS["paper"], replace(CONFIG, accumulate=4))
    two = [{key: value for key, value in record.items() if key != "seconds"} for record in read_log(tmp_path / "two")]
    assert len(two) == 6 and all(record["consistency"] > 0 for record in two)
    for ours, theirs in zip(two, one, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("change", [{"ar_weight": 2.0}, {"window": 4}, {"method": "cllm"}, {"consistency_weight": 0.1}])
def test_another_recipe_is_not_resumed(
    base: Base, tmp_path: Path, trajectories: list[Trajectory], change: dict[str, Any]
) -> None:
    how = METHODS["forcing"]
    run(base, tmp_path, trajectories, how, replace(CONFIG, steps=1))
    with pytest.raises(TrainingError, match="another"):
        run(base, tmp_path, trajectories, replace(how, **change), resume=True)


def test_answers_that_are_too_long_are_counted_and_nothing_at_all_is_refused(
    base: Base, tmp_path: Path, trajectories: list[Trajectory]
) -> None:
    """Noisy rows count: an answer whose clean text alone would fit is left out."""
    long = trajectories[5]
    clean = len(long.prompt_ids) + len(long.answer_ids) - 1
    how = METHODS["paper"]
    objective = jacobi_objective(how, replace(CONFIG, pack_tokens=clean + 2), base, trajectories, [])
    assert 0 < objective.left_out < len(trajectories)
    with pytest.raises(TrainingError, match="nothing to train on"):
        jacobi_objective(how, replace(CONFIG, pack_tokens=clean), base, [long], [])


def test_the_consistency_loss_comes_in_slowly(base: Base, tmp_path: Path, trajectories: list[Trajectory]) -> None:
    """Its part of a step rises with the run; the same step without the warm-up has all of it."""
    assert [risen(progress, 0.2) for progress in (0.0, 0.05, 0.1, 0.2, 0.9)] == [0.0, 0.25, 0.5, 1.0, 1.0]
    assert risen(0.0, 0.0) == 1.0
    slow = replace(METHODS["forcing"], consistency_warmup=0.5)
    first, *_ = run(base, tmp_path / "slow", trajectories, slow, replace(CONFIG, steps=2, learning_rate=1e-9))
    whole, *_ = run(
        base,
        tmp_path / "whole",
        trajectories,
        replace(slow, consistency_warmup=0.0),
        replace(CONFIG, steps=2, learning_rate=1e-9),
    )
    assert first["ar"] == pytest.approx(whole["ar"]) and first["consistency"] == pytest.approx(whole["consistency"] / 2)


def test_gold_answers_are_learnt_beside_the_models_own(base: Base, trajectories: list[Trajectory]) -> None:
    """As `train sft` would learn them; at most so many; and what a group shares is fed once."""
    groups, how = agent_groups(2, 3), replace(METHODS["forcing"], gold_share=1.0)
    config = replace(CONFIG, pack_tokens=500)
    alone = jacobi_objective(how, config, base, trajectories, [])
    both = jacobi_objective(how, config, base, trajectories, [], gold=groups)
    tuned = answers(config, base, groups, [])

    def texts(packs: Sequence[Pack]) -> Counter[tuple[str, str]]:
        return Counter(pair for pack in packs for pair in pack.pairs)

    assert texts(both.packs) - texts(alone.packs) <= texts(tuned.packs)
    assert sum(texts(both.packs).values()) == len(trajectories) + 8
    assert sum(len(pack.teachers) for pack in both.packs) == sum(len(pack.teachers) for pack in alone.packs)
    for share, more in ((0.5, 4), (0.0, 0), (9.0, 12)):
        objective = jacobi_objective(replace(how, gold_share=share), config, base, trajectories, [], gold=groups)
        assert sum(texts(objective.packs).values()) == len(trajectories) + more
    model = ready_model(base, None, torch.float32, torch.device("cpu"))
    gold = jacobi_objective(replace(how, gold_share=99.0), config, base, trajectories[:1], [], gold=groups)
    own = jacobi_objective(how, config, base, trajectories[:1], [])
    nats = [sum(float(pack_loss(model, pack).detach()) for pack in packs.packs) for packs in (gold, own, tuned)]
    assert nats[0] == pytest.approx(nats[1] + nats[2], rel=1e-4)


def tokens_per_forward(model: Path, trajectories: list[Trajectory]) -> tuple[float, float]:
    """Of `jacobi` on the trajectories' prompts, and the part of the answers that are as they were."""
    decoder, rounds, same = decoder_of(model), [], 0
    for one in trajectories:
        method = load_method("jacobi", block_size=8, refill=False)
        own = list(decode(decoder.target, [Request(one.prompt_ids, method, 40, stop=decoder.tokenizer.stop_ids)]))
        same += one.answer_ids == tuple(token for r in own for token in r.committed)
        rounds += own
    return measure(rounds).tokens_per_forward, same / len(trajectories)


def test_training_makes_jacobi_decoding_faster(tmp_path: Path) -> None:
    """On its own prompts, from its own trajectories, by the consistency loss: the other loss alone changes nothing."""
    folder = ending_checkpoint(tmp_path / "model", hidden_size=64, intermediate_size=128, head_dim=16)
    data = collected(decoder_of(folder), agent_groups(2, 2), tmp_path / "data", block_size=8)
    assert len(data) >= 6
    before, _ = tokens_per_forward(folder, data)
    config = TrainConfig(
        lora=None, steps=50, learning_rate=5e-3, weight_decay=0.0, pack_tokens=400, accumulate=1, dtype="fp32"
    )
    after = {}
    for weight in (0.0, 1.0):
        how = JacobiConfig(window=4, draws=4, ar_weight=1.0, consistency_weight=weight, consistency_warmup=0.0)
        out = tmp_path / str(weight)
        run(load_base(str(folder)), out, data, how, config)
        after[weight], same = tokens_per_forward(out / "model", data)
        assert same >= 0.9
    assert before < 1.1 and after[0.0] < 1.1
    assert after[1.0] > 1.3
