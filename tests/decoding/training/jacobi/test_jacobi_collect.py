"""Trajectories: the states that the decode loop really went through, without losses, duplicates or garbage."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from decoding.engine.loop import Request, decode
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import TextDecoder
from tests.decoding.models.jacobi_data import BASE, ORIGIN, N, collected, decoder_of, ending_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.config import TrainConfig, TrainingError
from training.jacobi.states import first_difference
from training.jacobi.trajectory import (
    FILE,
    Collecting,
    Trajectory,
    TrajectoryLog,
    blocks_of,
    collect,
    read_trajectories,
)
from training.packs.collect import repeats
from training.packs.groups import Group, Pair, TokenPair, TrainingDataError
from training.packs.packing import pack
from training.run.base import load_base, ready_model
from training.run.gpu_model import TrainModel

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
    return ready_model(
        load_base(str(folder)), None, TrainConfig(lora=None, steps=1), torch.float32, torch.device("cpu")
    )


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
    how = Collecting(N, lambda step: 40, batch=3)
    log = TrajectoryLog(tmp_path, ORIGIN)
    counts = collect(decoder, GROUPS, log, how, stopped=lambda: next(asked, None) is None)
    log.close()
    assert (counts["prompts"], counts["remaining"]) == (6, 34)
    data = log.path.read_bytes()
    log.path.write_bytes(data[:-20])
    assert collected(decoder, GROUPS, tmp_path, batch=3) == trajectories
    assert collected(decoder, GROUPS, tmp_path, batch=3) == trajectories
    with pytest.raises(TrainingError, match="another block_size"):
        TrajectoryLog(tmp_path, ORIGIN | {"block_size": 5})


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
    counts = collect(decoder, groups, TrajectoryLog(tmp_path, ORIGIN), Collecting(N, lambda step: 40))
    assert min(counts[reason] for reason in ("too_long", "unfinished", "newline", "empty", "repeats")) > 0
    assert sum(counts.values()) == 2 * counts["prompts"] == 82
    for one in read_trajectories(tmp_path / FILE, BASE):
        assert one.answer_ids[-1] in decoder.tokenizer.stop_ids and len(one.answer_ids) > 1
        assert "\n" not in decoder.tokenizer.decode(one.answer_ids)


def test_only_right_answers_on_demand(decoder: TextDecoder, trajectories: list[Trajectory], tmp_path: Path) -> None:
    """Right is what has the gold answer's tokens, which a text of many tokens may lack."""
    tokenizer, pairs = decoder.tokenizer, []
    for one in trajectories:
        text = tokenizer.decode(one.answer_ids[:-1])
        if tokenizer.encode(text) == list(one.answer_ids[:-1]):
            pairs.append(Pair(one.prompt, text, one.step, one.id))
    assert pairs
    groups = [Group("", (pairs[0], *(Pair(pair.prompt, "no", pair.step, pair.id) for pair in pairs[1:])))]
    [right] = collected(decoder, groups, tmp_path, only_right=True)
    assert right.prompt == pairs[0].prompt and right.right
    assert not any(one.right for one in trajectories)


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
