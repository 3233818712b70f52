"""What Jacobi training feeds: which states of a trajectory, which rows see which in a pack, and which rows are matched."""

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.decoding.models.jacobi_data import N, invented_trajectories
from training.jacobi.states import (
    Chain,
    Example,
    JacobiBuilder,
    JacobiConfig,
    JacobiPack,
    chains,
    nearest,
    noise,
    ratios,
)
from training.jacobi.trajectory import Trajectory

Place = tuple[str, int, int]
"""(kind, block, index in it); the prompt is one block."""


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    return invented_trajectories()


def test_noise_is_what_stands_from_the_first_wrong_token_on() -> None:
    fixed = (5, 6, 7, 8)
    states = ((1, 6, 7, 8), (5, 1, 7, 8), (5, 6, 7, 1), fixed)
    assert [noise(state, fixed) for state in states] == [1.0, 0.75, 0.25, 0.0]
    wanted = {1.0: 0, 0.9: 0, 0.8: 1, 0.5: 1, 0.4: 2, 0.2: 2, 0.1: 3, 0.0: 3}
    assert {ratio: states.index(nearest(states, ratio)) for ratio in wanted} == wanted


def test_noise_grows_through_a_window_and_begins_again() -> None:
    assert ratios(3, 7, 0) == [0.0, 0.5, 1.0, 0.0, 0.5, 1.0, 0.0]
    assert ratios(3, 4, 2) == [1.0, 0.0, 0.5, 1.0]


def test_a_window_is_one_chain(trajectories: list[Trajectory]) -> None:
    """Blocks in the states that their ratios name, from the window's first block to its last."""
    one = trajectories[5]
    assert len(one.blocks) == 6
    found = chains(one, JacobiConfig(window=4, shift=False), Random(0))
    wanted = [nearest(states, ratio) for states, ratio in zip(one.blocks, [0, 1 / 3, 2 / 3, 1, 0, 1 / 3], strict=True)]
    assert [(chain.start, chain.blocks) for chain in found] == [(0, tuple(wanted[:4])), (16, tuple(wanted[4:]))]


class Shifted(Random):
    """A first window that begins at the third block of the schedule."""

    def randrange(self, *_: Any) -> int:
        return 2


def test_a_shifted_window_ends_where_noise_begins_again(trajectories: list[Trajectory]) -> None:
    one, how = trajectories[5], JacobiConfig(window=3)
    wanted = list(window_chains(noisy_blocks(one, how, 2), 3, 2))
    assert [chain.start for chain in wanted] == [0, N, 4 * N] and [len(chain.blocks) for chain in wanted] == [1, 3, 2]
    assert chains(one, how, Shifted()) == tuple(wanted)


def test_every_noise_reaches_a_short_answers_first_block(trajectories: list[Trajectory]) -> None:
    """With `shift`; without, the schedule gives the first block no noise at all."""
    one = trajectories[0]
    many = chains(one, JacobiConfig(window=4, draws=40), Random(0))
    assert {chain.blocks[0] for chain in many} == set(one.blocks[0][:-1]) and len(many) == len(set(many))
    assert chains(one, JacobiConfig(window=4, draws=40, shift=False), Random(0)) == ()


def test_a_consistency_model_learns_from_any_wrong_state(trajectories: list[Trajectory]) -> None:
    one = trajectories[5]
    many = chains(one, JacobiConfig(method="cllm", draws=60), Random(0))
    for number, states in enumerate(one.blocks):
        found = {chain.blocks[0] for chain in many if chain.start == number * N}
        assert found == set(states[:-1])


def sees(window: int, phase: int, query: Place, key: Place) -> bool:
    """The definition, place by place."""
    (kind, block, index), (other, before, place) = query, key
    if other == "prompt":
        return kind != "prompt" or place <= index
    if kind == "prompt":
        return False
    if kind == other and block == before:
        return place <= index
    if kind == "clean":
        return other == "clean" and before < block
    same_window = (block + phase) // window == (before + phase) // window
    return before < block and (other == "noisy") == same_window


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_rows_see_what_the_definition_says(trajectories: list[Trajectory], phase: int) -> None:
    """Prompt, clean and noisy blocks of two answers that share the beginning of their prompts, in one pack: every noisy row
    after a wrong token, and every clean row, sees exactly the tokens of the definition, at their positions."""
    how, chosen = JacobiConfig(window=3), [trajectories[4], trajectories[5]]
    builder = JacobiBuilder()
    for one in chosen:
        noisy = noisy_blocks(one, how, phase)
        builder.add(Example.of(one, tuple(window_chains(noisy, how.window, phase))))
    pack = builder.pack()
    mask, positions = pack.mask(), pack.positions()
    met = set()
    for one in chosen:
        layout = laid_out(one, noisy_blocks(one, how, phase))
        for query in layout:
            if query[0] == "prompt" or query not in fed(one, layout):
                continue
            keys = sorted(
                (position(one, key), token) for key, token in layout.items() if sees(how.window, phase, query, key)
            )
            row = row_of(pack, mask, positions, keys)
            assert positions[row] == position(one, query) == len(keys) - 1
            met.add(row)
    prompts = {row for row in range(pack.rows) if positions[row] < 12}
    assert met | prompts == set(range(pack.rows)), "no row sees anything else"


def noisy_blocks(one: Trajectory, how: JacobiConfig, phase: int) -> list[tuple[int, ...]]:
    wanted = ratios(how.window, len(one.blocks), phase)
    return [nearest(states, ratio) for states, ratio in zip(one.blocks, wanted, strict=True)]


def window_chains(noisy: list[tuple[int, ...]], window: int, phase: int) -> Iterator[Chain]:
    for number in range((len(noisy) + phase - 1) // window + 1):
        inside = [block for block in range(len(noisy)) if (block + phase) // window == number]
        yield Chain(inside[0] * N, tuple(noisy[block] for block in inside))


def laid_out(one: Trajectory, noisy: list[tuple[int, ...]]) -> dict[Place, int]:
    """Token by place, as the papers lay an answer out: the prompt, then each block noisy and clean."""
    found = {("prompt", 0, i): token for i, token in enumerate(one.prompt_ids)}
    for block, states in enumerate(one.blocks):
        found |= {("noisy", block, i): token for i, token in enumerate(noisy[block])}
        found |= {("clean", block, i): token for i, token in enumerate(states[-1])}
    return found


def fed(one: Trajectory, layout: dict[Place, int]) -> set[Place]:
    """All places but those of the stop token."""
    return {place for place in layout if position(one, place) < len(one.prompt_ids) + len(one.answer_ids) - 1}


def position(one: Trajectory, place: Place) -> int:
    kind, block, index = place
    return index if kind == "prompt" else len(one.prompt_ids) + block * N + index


def row_of(pack: JacobiPack, mask: Any, positions: Any, keys: list[tuple[int, int]]) -> int:
    """The one row that sees exactly these (position, token) pairs."""
    found = [
        row
        for row in range(pack.rows)
        if sorted((int(positions[key]), int(pack.tokens[key])) for key in np.flatnonzero(mask[row])) == keys
    ]
    assert len(found) == 1, "what is the same is fed once, and nothing is missing"
    return found[0]


def test_terms_begin_at_the_first_wrong_token_and_end_before_the_stop_token() -> None:
    """Rows 0.. are prompt [10, 11] and clean answer [1 2 3 4 | 5 6(stop)]; the noisy text is [1 9 3 4 | 8 8]."""
    prompt, answer = np.array([10, 11], dtype=np.int32), np.array([1, 2, 3, 4, 5, 6], dtype=np.int32)
    builder = JacobiBuilder()
    builder.add(Example("plan", "1", prompt, answer, (Chain(0, ((1, 9, 3, 4), (8, 8))),)))
    pack = builder.pack()
    assert pack.tokens.tolist() == [10, 11, 1, 2, 3, 4, 5, 9, 3, 4, 8]
    assert pack.sources.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert pack.targets.tolist() == [1, 2, 3, 4, 5, 6]
    assert pack.sources[pack.teachers].tolist() == [3, 4, 5, 6]
    assert pack.shares.tolist() == pytest.approx([1 / 3] * 3 + [1.0])
