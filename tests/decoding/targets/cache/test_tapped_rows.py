"""Hidden states of one forward alone, of every target: those of the whole text, behind whatever prefix is cached.

In int8 they are equal to the bit. In fp32 a number may differ by 1e-4, which is rounding: they reach 34. Any two rows of a
layer have a number in which they differ by more than 0.05, so that a wrong row fails.
"""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import numpy.typing as npt
import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, Array, ForwardInput
from decoding.targets.fast_target import FastTarget
from decoding.targets.hf_target import HfTarget
from decoding.targets.int8.cpu_target import CpuTarget
from kernels.cpu.processor import variant
from tests.decoding.engine.reading import read
from tests.decoding.models.tiny_models import tiny_checkpoint

INT8 = pytest.param(
    "int8", marks=pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
)
TARGETS: dict[str, Callable[[Path], AnyTarget]] = {"hf": HfTarget.load, "fast": FastTarget.load, "int8": CpuTarget.load}
KINDS = pytest.mark.parametrize("kind", ["hf", "fast", INT8])
TEXT = tuple(random.Random(1).choices(range(3, 300), k=400))
PROMPT = TEXT[:90]
TREE = Draft((5, 6, 7, 8, 9, 6, 11), (-1, 0, 1, -1, 3, 3, 5))
TAPS = (0, 2)


@cache
def checkpoint() -> Path:
    return tiny_checkpoint(Path(mkdtemp()) / "qwen3", "qwen3", seed=3)


def fresh(kind: str) -> AnyTarget:
    return TARGETS[kind](checkpoint())


@cache
def whole(kind: str, tokens: tuple[int, ...] = TEXT) -> npt.NDArray[np.float32]:
    """The states [tokens, all taps, hidden] of a text that is read at once."""
    return read(fresh(kind), tokens, (0, 1, 2))


def agree(kind: str, found: Array | None, want: npt.NDArray[np.float32]) -> None:
    assert found is not None
    np.testing.assert_allclose(torch.as_tensor(found).numpy(), want, rtol=0, atol=0 if kind == "int8" else 1e-4)


@KINDS
def test_other_rows_are_far_from_what_is_tolerated(kind: str) -> None:
    for tap in (1, 2):
        rows = whole(kind)[:, tap]
        furthest = abs(rows[:, None] - rows[None]).max(-1) + np.eye(len(rows))
        assert furthest.min() > 0.05


@KINDS
@pytest.mark.parametrize(("cached", "taps"), [(0, ()), (90, ()), (90, (2,)), (90, (0, 1, 2))])
def test_states_are_those_of_the_whole_text(kind: str, cached: int, taps: tuple[int, ...]) -> None:
    """310 rows behind the prefix: a forward of several chunks. Guards against a miss, and against rows that are shifted."""
    target = fresh(kind)
    if cached:
        read(target, TEXT[:cached], taps)
    sequence = target.open(TEXT, Sampler())
    assert sequence.cached == cached
    (scores,) = target.score([ForwardInput(sequence, TEXT[cached:], Draft(), TAPS)])
    agree(kind, scores.hidden, whole(kind)[cached:, TAPS])


@KINDS
def test_nobody_keeps_them(kind: str) -> None:
    """Keys and values are kept as without taps, accepted nodes of a tree too, and whoever needs states misses."""
    target = fresh(kind)
    sequence = target.open(PROMPT, Sampler())
    (scores,) = target.score([ForwardInput(sequence, PROMPT, TREE, TAPS)])
    path = TREE.path(5)
    text = (*PROMPT, *(TREE.tokens[node] for node in path), 4)
    fed = [*range(len(PROMPT)), *(len(PROMPT) + node for node in path)]
    agree(kind, scores.hidden[fed], whole(kind, text)[:-1, TAPS])
    target.commit(sequence, path)
    assert sequence.hidden is None
    (after,) = target.score([ForwardInput(sequence, text[-1:], Draft(), (1,))])
    agree(kind, after.hidden, whole(kind, text)[-1:, 1:2])
    target.commit(sequence, ())
    target.close(sequence)
    assert target.open((*text, 1), Sampler()).cached == len(text)
    assert target.open((*text, 1), Sampler(), TAPS).cached == 0


@KINDS
def test_each_of_a_batch_gets_the_states_that_it_asked_for(kind: str) -> None:
    target = fresh(kind)
    read(target, PROMPT)
    keeps, plain, asks, more = (target.open(TEXT, Sampler(), taps) for taps in ((1,), (), (), ()))
    scores = target.score(
        [
            ForwardInput(keeps, TEXT, Draft()),
            ForwardInput(plain, TEXT[90:], Draft()),
            ForwardInput(asks, TEXT[90:95], Draft(), (2,)),
            ForwardInput(more, TEXT[90:200], Draft(), (1, 0)),
        ]
    )
    agree(kind, scores[0].hidden, whole(kind)[:, 1:2])
    assert scores[1].hidden is None
    agree(kind, scores[2].hidden, whole(kind)[90:95, 2:])
    agree(kind, scores[3].hidden, whole(kind)[90:200, [1, 0]])
    target.commit(keeps, ())
    agree(kind, keeps.hidden, whole(kind)[:, 1:2])


@KINDS
def test_taps_are_named_once(kind: str) -> None:
    target = fresh(kind)
    with pytest.raises(ValueError, match="not in both"):
        target.score([ForwardInput(target.open(PROMPT, Sampler(), (1,)), PROMPT, Draft(), (1,))])


@pytest.mark.parametrize("kind", ["fast", INT8])
def test_taps_that_the_model_lacks_are_refused(kind: str) -> None:
    target = fresh(kind)
    with pytest.raises(ValueError, match="taps must lie between 0 and 2"):
        target.score([ForwardInput(target.open(PROMPT, Sampler()), PROMPT, Draft(), (3,))])
