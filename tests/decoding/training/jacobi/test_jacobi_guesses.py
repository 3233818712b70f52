"""Noise made during training: what a sweep is, and that learning from it makes decoding faster."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.decoding.models.jacobi_data import ending_checkpoint
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.training_data import agent_groups
from tests.decoding.training.jacobi.test_jacobi_training import tokens_per_forward
from training.config import LoraConfig, TrainConfig, TrainingError
from training.jacobi.states import (
    JacobiBuilder,
    JacobiConfig,
    JacobiPack,
    drawn_sweeps,
    examples,
    guessed,
    jacobi_objective,
    swept,
)
from training.jacobi.trajectory import Trajectory
from training.loop import train
from training.packs.groups import stop_token
from training.packs.packing import fill
from training.run.base import Base, load_base, ready_model
from training.run.gpu_model import TrainModel
from training.run.progress import read_log

pytestmark = pytest.mark.usefixtures("one_thread")
N = 6
HOW = JacobiConfig(sweeps=1, block_size=N, window=3, draws=2)
CONFIG = TrainConfig(
    lora=LoraConfig(rank=4, alpha=8.0), steps=4, learning_rate=2e-3, pack_tokens=300, accumulate=1, dtype="fp32"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(str(tiny_checkpoint(tmp_path_factory.mktemp("tiny"), vocab=330)))


def made(base: Base, n: int = N) -> list[Trajectory]:
    return list(guessed(agent_groups(2, 2), base.tokenizer, stop_token(base.tokenizer), n))


def test_states_are_right_tokens_and_then_a_guess_from_the_prompt(base: Base) -> None:
    pairs = [(group.prefix + pair.prompt, pair) for group in agent_groups(2, 2) for pair in group.pairs]
    for one, (prompt, pair) in zip(made(base), pairs, strict=True):
        assert (one.prompt, one.id, one.step) == (prompt, pair.id, pair.step)
        assert base.tokenizer.decode(one.answer_ids[:-1]) == pair.answer and len(one.group) == one.prefix > 0
        assert sum((states[-1] for states in one.blocks), ()) == one.answer_ids
        for states in one.blocks:
            fixed, guess = states[-1], states[0]
            assert set(guess) <= set(one.prompt_ids)
            assert list(states[:-1]) == [fixed[:done] + guess[done:] for done in range(len(fixed))]


def test_states_may_hold_the_mask_token_instead(base: Base) -> None:
    stop = stop_token(base.tokenizer)
    for one in guessed(agent_groups(2, 2), base.tokenizer, stop, N, "mask"):
        assert all(set(states[0]) == {one.prompt_ids[-1]} for states in one.blocks if len(states) > 1)


def test_some_packs_are_learnt_before_the_first_sweep_and_some_after(base: Base) -> None:
    sizes = [list(examples(made(base, n), HOW, 0).values()) for n in range(3, 12)]
    packs = [pack for data in sizes for pack in fill(data, 120, 0, JacobiBuilder)[0]]
    assert {drawn_sweeps(pack, 2) for pack in packs} == {0, 1, 2}
    assert {drawn_sweeps(pack, 0) for pack in packs} == {0}


def sweep_alone(model: TrainModel, pack: JacobiPack) -> dict[int, int]:
    """The choice before each noisy row, every text run by itself: (row, token)."""
    found = {}
    for row in pack.students.tolist():
        path = [int(pack.parents[row])]
        while pack.parents[path[0]] >= 0:
            path.insert(0, int(pack.parents[path[0]]))
        alone = replace(
            pack,
            tokens=pack.tokens[path],
            parents=torch.arange(-1, len(path) - 1).int().numpy(),
            sources=pack.sources[:1] * 0 + len(path) - 1,
        )
        found[row] = int(model.logits(model.rows(alone)).argmax())
    return found


def test_a_sweep_answers_to_the_guess_and_leaves_the_clean_text(base: Base) -> None:
    """One sweep and the next, against every noisy token's text run alone."""
    model = ready_model(base, None, CONFIG, torch.float32, torch.device("cpu"))
    packs, _ = fill(list(examples(made(base), HOW, 0).values()), 300, 0, JacobiBuilder)
    for pack in packs:
        once, twice = swept(model, pack, 1), swept(model, pack, 2)
        assert {row: int(once.tokens[row]) for row in pack.students.tolist()} == sweep_alone(model, pack)
        assert {row: int(twice.tokens[row]) for row in pack.students.tolist()} == sweep_alone(model, once)
        clean = sorted(set(range(pack.rows)) - set(pack.students.tolist()))
        assert len(clean) > len(pack.targets) and (twice.tokens[clean] == pack.tokens[clean]).all()
        assert swept(model, pack, 0) is pack


def test_a_resumed_run_sweeps_as_one_that_was_never_stopped(base: Base, tmp_path: Path) -> None:
    kind, asked = partial(jacobi_objective, HOW), iter(range(2))
    for name, stopped in (("whole", lambda: False), ("parts", lambda: next(asked, None) is None)):
        train(CONFIG, base, agent_groups(2, 3), tmp_path / name, objective=kind, stopped=stopped)
    train(CONFIG, base, agent_groups(2, 3), tmp_path / "parts", objective=kind, resume=True)
    logs = [
        [{key: value for key, value in record.items() if key != "seconds"} for record in read_log(tmp_path / name)]
        for name in ("whole", "parts")
    ]
    assert logs[0] == logs[1] and len(logs[0]) == 4 and all(record["consistency"] > 0 for record in logs[0])
    other = partial(jacobi_objective, replace(HOW, sweeps=2))
    with pytest.raises(TrainingError, match="another"):
        train(CONFIG, base, agent_groups(2, 3), tmp_path / "whole", objective=other, resume=True)


def test_decoding_gets_faster_by_it(tmp_path: Path) -> None:
    """On answers that were learnt first: by the consistency loss alone, accuracy kept by the other."""
    folder = ending_checkpoint(tmp_path / "model", stop_ids=2, hidden_size=64, intermediate_size=128, head_dim=16)
    base, groups = load_base(str(folder)), agent_groups(2, 2)
    stop = base.tokenizer.token(max(base.tokenizer.stop_ids))
    config = TrainConfig(
        lora=None,
        steps=100,
        learning_rate=5e-3,
        weight_decay=0.0,
        pack_tokens=400,
        accumulate=1,
        dtype="fp32",
        stop_token=stop,
    )
    data = list(guessed(groups, base.tokenizer, stop_token(base.tokenizer, stop), 8))
    after: dict[float, tuple[float, float]] = {}
    for weight in (0.0, 1.0):
        how = JacobiConfig(sweeps=1, block_size=8, window=4, draws=4, ar_weight=1.0, consistency_weight=weight)
        train(config, base, groups, tmp_path / str(weight), objective=partial(jacobi_objective, how))
        after[weight] = tokens_per_forward(tmp_path / str(weight) / "model", data)
    assert after[0.0][1] >= 0.9 and after[1.0][1] >= 0.9
    assert after[1.0][0] > 1.25 * after[0.0][0]
