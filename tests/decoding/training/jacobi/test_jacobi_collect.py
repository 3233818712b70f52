"""Trajectories: the states that the decode loop really went through, without losses, duplicates or garbage.

Noise made during training: what a sweep is, and that learning from it makes decoding faster.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from decoding.engine.loop import Request, decode
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import TextDecoder
from tests.decoding.models.jacobi_data import BASE, ORIGIN, N, collected, decoder_of, ending_checkpoint
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
    first_difference,
    guessed,
    jacobi_objective,
    swept,
)
from training.jacobi.trajectory import (
    FILE,
    Collecting,
    Trajectory,
    blocks_of,
    collect,
    read_trajectories,
)
from training.loop import train
from training.packs.collect import RecordLog, repeats
from training.packs.groups import Group, Pair, TokenPair, TrainingDataError, stop_token
from training.packs.packing import fill, pack
from training.run.base import Base, load_base, ready_model
from training.run.gpu_model import TrainModel
from training.run.progress import read_log

GROUPS = agent_groups(4, 5)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ending_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def decoder(folder: Path) -> TextDecoder:
    return decoder_of(folder)


@pytest.fixture(scope="module")
def trajectories(decoder: TextDecoder, tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    found = collected(decoder, GROUPS, tmp_path_factory.mktemp("out"), batch=3)
    assert len(found) >= 15 and max(len(one.blocks) for one in found) >= 4, "too little to test on"
    assert any(len(states) >= 3 for one in found for states in one.blocks)
    return found


def test_the_answer_is_what_plain_decoding_writes(decoder: TextDecoder, trajectories: list[Trajectory]) -> None:
    """And the blocks' last states are its parts: full blocks, then one that ends with the stop token."""
    for one in trajectories:
        request = Request(one.prompt_ids, load_method("plain"), max_new_tokens=40, stop=decoder.tokenizer.stop_ids)
        assert one.answer_ids == tuple(token for r in decode(decoder.target, [request]) for token in r.committed)
        assert one.answer_ids == tuple(token for states in one.blocks for token in states[-1])
        assert [len(states[-1]) for states in one.blocks[:-1]] == [N] * (len(one.blocks) - 1)
        assert all(len(state) == len(states[-1]) for states in one.blocks for state in states)
        assert one.prompt_ids == tuple(decoder.tokenizer.encode(one.prompt))


@pytest.fixture(scope="module")
def model(folder: Path) -> TrainModel:
    """Another forward than the one that decoded: no cache, no draft."""
    return ready_model(load_base(str(folder)), None, torch.float32, torch.device("cpu"))


@torch.no_grad()
def sweep(model: TrainModel, before: Sequence[int], state: Sequence[int]) -> list[int]:
    """The most likely token at each of the state's places, given the text before and the state's tokens before it."""
    tokens = torch.tensor([*before, *state]).numpy().astype("int32")
    pair = TokenPair(tokens, tokens[len(before) - 1 :], "", "", 1.0)
    [one], _ = pack([[pair]], 1000, seed=0)
    return model.logits(model.rows(one))[:-1].argmax(-1).tolist()[: len(state)]


def test_each_state_is_one_sweep_after_the_one_before(
    model: TrainModel, decoder: TextDecoder, trajectories: list[Trajectory]
) -> None:
    """By a whole forward over prompt, earlier blocks and state; what stands behind a guessed stop token is not swept."""
    stop = decoder.tokenizer.stop_ids
    for one in trajectories:
        start = 0
        for states in one.blocks:
            fixed = states[-1]
            before = [*one.prompt_ids, *one.answer_ids[:start]]
            for old, new in pairwise(states):
                swept = sweep(model, before, old)
                stopped = next((i for i, token in enumerate(old) if token in stop), len(old))
                assert list(new[: stopped + 1]) == swept[: stopped + 1]
                assert first_difference(new, fixed) > first_difference(old, fixed)
            assert sweep(model, before, fixed) == list(fixed)
            start += len(fixed)


def test_no_state_is_lost(trajectories: list[Trajectory]) -> None:
    """A forward drafts one state, but for the answer's last: a fixed point may be drafted or found on the way."""
    for one in trajectories:
        drafted = sum(len(states) for states in one.blocks)
        assert one.forwards <= drafted <= one.forwards + len(one.blocks)
        begun = one.blocks[0][0]
        assert set(begun) <= set(one.prompt_ids) or begun in one.blocks[0][1:], (
            "the first guess is drawn from the prompt"
        )


def test_collected_blocks_begin_with_the_first_guess_asked_for(decoder: TextDecoder, tmp_path: Path) -> None:
    found = collected(decoder, GROUPS[:1], tmp_path, first_guess="mask")
    begun = [one.blocks[0][0] for one in found if len(one.blocks[0]) > 1]
    marked = [state for one, state in zip(found, begun, strict=False) if set(state[1:]) == {one.prompt_ids[-1]}]
    assert begun and marked


def test_a_killed_collection_goes_on(decoder: TextDecoder, trajectories: list[Trajectory], tmp_path: Path) -> None:
    """From a file that ends within a line, and after a stop between batches: the same records in the end, none twice."""
    asked = iter(range(2))
    how = Collecting(block_size=N, max_new_tokens=lambda step: 40, batch=3)
    log = RecordLog(tmp_path / FILE, ORIGIN)
    counts = collect(decoder, GROUPS, log, how, stopped=lambda: next(asked, None) is None)
    log.close()
    assert (counts["prompts"], counts["remaining"]) == (6, 34)
    data = log.path.read_bytes()
    log.path.write_bytes(data[:-20])
    assert collected(decoder, GROUPS, tmp_path, batch=3) == trajectories
    assert collected(decoder, GROUPS, tmp_path, batch=3) == trajectories
    with pytest.raises(TrainingError, match="another block_size"):
        RecordLog(tmp_path / FILE, ORIGIN | {"block_size": 5})


def test_batch_and_limit_change_nothing_else(
    decoder: TextDecoder, trajectories: list[Trajectory], tmp_path: Path
) -> None:
    some = collected(decoder, GROUPS, tmp_path, batch=1, limit=9)
    assert 0 < len(some) <= 9 and some == trajectories[: len(some)]
    assert collected(decoder, GROUPS, tmp_path, limit=1000) == trajectories, "a greater limit goes on"
    other = collected(decoder, GROUPS, tmp_path / "other", seed=1)
    assert other != trajectories and {one.prompt for one in other} == {one.prompt for one in trajectories}


def test_prompts_of_a_group_compute_the_schema_once(decoder: TextDecoder, trajectories: list[Trajectory]) -> None:
    for one in trajectories:
        assert decoder.tokenizer.decode(one.group) == one.prompt[: one.prompt.index("\n") + 1]
    assert len({one.group for one in trajectories}) == len(GROUPS)


def test_what_is_left_out_is_counted_by_reason(decoder: TextDecoder, tmp_path: Path) -> None:
    """Prompts that do not fit, and answers that do not end, go on after a newline, are nothing or repeat themselves."""
    groups = [*GROUPS, Group("", (Pair("x " * 300, " y", "plan", "long"),))]
    how = Collecting(block_size=N, max_new_tokens=lambda step: 40)
    counts = collect(decoder, groups, RecordLog(tmp_path / FILE, ORIGIN), how)
    assert min(counts[reason] for reason in ("too_long", "unfinished", "newline", "empty", "repeats")) > 0
    assert sum(counts.values()) == 2 * counts["prompts"] == 82
    for one in read_trajectories(tmp_path / FILE, BASE):
        assert one.answer_ids[-1] in decoder.tokenizer.stop_ids and len(one.answer_ids) > 1
        assert "\n" not in decoder.tokenizer.decode(one.answer_ids)


@pytest.mark.parametrize(
    ("tokens", "repeated"),
    [
        ([7] * 11, True),
        ([7] * 10, False),
        ([1, 2, 3, *[4, 5, 6, 7] * 4, 8], True),
        ([1, 2, 3, *[4, 5, 6, 7] * 3, 8], False),
        ([*range(30), *range(30)], False),
        ([], False),
    ],
)
def test_repetition_is_a_run_without_anything_between(tokens: list[int], repeated: bool) -> None:
    assert repeats(tokens) is repeated


def test_states_end_where_the_answer_ends() -> None:
    seen = {0: [(1, 9, 9), (1, 2, 9), (1, 2, 3)], 1: [(9, 9, 9), (4, 5, 8), (4, 5, 7)]}
    assert blocks_of((1, 2, 3, 4, 5), seen, 3) == (((1, 9, 9), (1, 2, 9), (1, 2, 3)), ((9, 9), (4, 5)))
    assert blocks_of((1,), {}, 3) == (((1,),),)


def test_another_models_trajectories_and_other_files_are_refused(
    decoder: TextDecoder, tmp_path: Path, trajectories: list[Trajectory]
) -> None:
    collected(decoder, GROUPS[:1], tmp_path, limit=2)
    with pytest.raises(TrainingDataError, match="another base"):
        list(read_trajectories(tmp_path / FILE, "1" * 64))
    (tmp_path / "groups.jsonl").write_text('{"prefix": "", "pairs": []}\n')
    with pytest.raises(TrainingDataError, match="holds no trajectories"):
        list(read_trajectories(tmp_path / "groups.jsonl", BASE))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"id": "1"}\n')
    with pytest.raises(TrainingDataError, match=r"line \d: no trajectory"):
        list(read_trajectories(tmp_path / FILE, BASE))


NOfJacobiGuesses = 6
HOW = JacobiConfig(sweeps=1, block_size=NOfJacobiGuesses, window=3, draws=2)
CONFIG = TrainConfig(
    lora=LoraConfig(rank=4, alpha=8.0), steps=4, learning_rate=2e-3, pack_tokens=300, accumulate=1, dtype="fp32"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(str(tiny_checkpoint(tmp_path_factory.mktemp("tiny"), vocab=330)))


def made(base: Base, n: int = NOfJacobiGuesses) -> list[Trajectory]:
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
    for one in guessed(agent_groups(2, 2), base.tokenizer, stop, NOfJacobiGuesses, "mask"):
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
    model = ready_model(base, None, torch.float32, torch.device("cpu"))
    packs, _ = fill(list(examples(made(base), HOW, 0).values()), 300, 0, JacobiBuilder)
    for each in packs:
        once, twice = swept(model, each, 1), swept(model, each, 2)
        assert {row: int(once.tokens[row]) for row in each.students.tolist()} == sweep_alone(model, each)
        assert {row: int(twice.tokens[row]) for row in each.students.tolist()} == sweep_alone(model, once)
        clean = sorted(set(range(each.rows)) - set(each.students.tolist()))
        assert len(clean) > len(each.targets) and (twice.tokens[clean] == each.tokens[clean]).all()
        assert swept(model, each, 0) is each


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
