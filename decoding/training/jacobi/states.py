"""Chooses the states of a trajectory that a model is trained on, which are the noise that it sees.

Consistency LLMs (arXiv 2403.00835) take each block alone, after clean text, in one of its states at random. Jacobi Forcing
(arXiv 2512.14681) takes windows of blocks in which noise grows from block to block, each after the noisy ones before it.
Plain data, no tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from decoding.training.jacobi.config import JacobiConfig, Schedule
from decoding.training.jacobi.trajectory import State, Trajectory


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive noisy blocks after the clean text before `start`.

    `teacher`: the state whose answers are learnt; None: the fixed point. Only a chain of one block can have one.
    """

    start: int  # how many tokens of the answer come before it
    blocks: tuple[State, ...]
    teacher: State | None = None

    @property
    def tokens(self) -> State:
        return tuple(token for block in self.blocks for token in block)


def first_difference(state: Sequence[int], fixed: Sequence[int]) -> int:
    """Index of the first token that differs; the length of `fixed` if none does."""
    return next((i for i, (a, b) in enumerate(zip(state, fixed, strict=True)) if a != b), len(fixed))


def noise(state: Sequence[int], fixed: Sequence[int]) -> float:
    """Share of a block from its first wrong token on: at most 1, and 0 for the fixed point."""
    return 1.0 - first_difference(state, fixed) / len(fixed)


def nearest(states: Sequence[State], ratio: float) -> State:
    """The state whose noise is nearest to `ratio`; of equals, the earlier, noisier one. The last state is the fixed point."""
    return min(states, key=lambda state: abs(noise(state, states[-1]) - ratio))


def ratios(schedule: Schedule, window: int, blocks: int, phase: int, chance: Random) -> list[float]:
    """The desired noise of each of `blocks` blocks, the first of which has index `phase` in its window.

    Linear: 0, 1 / (window - 1), ..., 1, repeated for every window. Reverse: from 1 down to 0. Random: uniform from 0 to 1.
    """
    indices = [(phase + block) % window for block in range(blocks)]
    if schedule == "random":
        return [chance.random() for _ in indices]
    rising = [index / (window - 1) for index in indices]
    return rising if schedule == "linear" else [1.0 - ratio for ratio in rising]


def chains(trajectory: Trajectory, config: JacobiConfig, chance: Random) -> tuple[Chain, ...]:
    """The chains of a trajectory to train on, each once; those without a wrong token are left out."""
    draw = _windows if config.method == "jacobi_forcing" else _single_blocks
    drawn = [chain for _ in range(config.draws) for chain in draw(trajectory, config, chance)]
    return tuple(dict.fromkeys(drawn))


def _windows(trajectory: Trajectory, config: JacobiConfig, chance: Random) -> list[Chain]:
    window, blocks = config.window, trajectory.blocks
    phase = chance.randrange(window) if config.shift else 0
    wanted = ratios(config.schedule, window, len(blocks), phase, chance)
    noisy = [nearest(states, ratio) for states, ratio in zip(blocks, wanted, strict=True)]
    edges = [0, *range(window - phase, len(blocks), window), len(blocks)]
    found, size = [], len(blocks[0][-1])
    for first, stop in pairwise(edges):
        if any(state != states[-1] for state, states in zip(noisy[first:stop], blocks[first:stop], strict=True)):
            found.append(Chain(first * size, tuple(noisy[first:stop])))
    return found


def _single_blocks(trajectory: Trajectory, config: JacobiConfig, chance: Random) -> list[Chain]:
    found, start = [], 0
    for states in trajectory.blocks:
        if config.half_correct:
            states = half_corrected(states, chance)
        if len(states) > 1:
            index = chance.randrange(len(states) - 1)
            teacher = states[index + 1] if config.consistency == "local" and index + 2 < len(states) else None
            found.append(Chain(start, (states[index],), teacher))
        start += len(states[-1])
    return found


def half_corrected(states: Sequence[State], chance: Random) -> tuple[State, ...]:
    """The states, with a copy after each but the last in which half of the wrong tokens are corrected."""
    fixed = states[-1]
    out = [fixed]
    for state in reversed(states[:-1]):
        wrong = [i for i, (a, b) in enumerate(zip(state, fixed, strict=True)) if a != b]
        right = set(chance.sample(wrong, len(wrong) // 2))
        corrected = tuple(fixed[i] if i in right else token for i, token in enumerate(state))
        out += [corrected, state] if right else [state]
    return tuple(reversed(out))
