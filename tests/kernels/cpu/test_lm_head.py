"""The choice among logits in parts: the sampler's own, at any temperature and in any order of the parts."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.cpu.forward import choose, choose_reference, spread
from kernels.cpu.job import CHUNK
from kernels.cpu.processor import variant
from kernels.gpu.choice import choose_reference as of_tensors

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")


def signed(seed: int) -> int:
    """The same 64 bits."""
    return (seed + 2**63) % 2**64 - 2**63


def chosen(logits: npt.NDArray[np.float32], heat: float, seed: int, position: int, order: list[int]) -> int:
    best, tokens = np.array([-np.inf], np.float32), np.zeros(1, np.int64)
    for first in order:
        part = np.full(CHUNK, 99, np.float32)  # what lies behind the last logit does not count
        count = min(CHUNK, len(logits) - first)
        part[:count] = logits[first : first + count]
        key = np.float32(heat), signed(seed), position
        choose(part.ctypes.data, count, first, *key, best.ctypes.data, tokens.ctypes.data, 0)
    return int(tokens[0])


@pytest.mark.parametrize("heat", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_the_choice_is_the_samplers(heat: float, spread: float) -> None:
    for seed, position in ((0, 0), (1, 5), (2**64 - 3, 700), (12345678901234567890, 8)):
        random = np.random.default_rng(position)
        logits = (spread * random.standard_normal(1000)).astype(np.float32)
        order = random.permutation(np.arange(0, 1000, CHUNK)).tolist()
        want = choose_reference(logits, heat, seed, position)
        assert chosen(logits, heat, seed, position, order) == want
        keys = torch.tensor([heat]), torch.tensor([signed(seed)]), torch.tensor([position])
        assert int(of_tensors(torch.from_numpy(logits)[None], *keys)) == want


def test_the_first_of_equals_wins_in_any_order() -> None:
    logits = np.zeros(2 * CHUNK + 5, np.float32)
    logits[[7, 9, CHUNK + 1, 2 * CHUNK + 4]] = 3
    for order in ([0, CHUNK, 2 * CHUNK], [2 * CHUNK, CHUNK, 0]):
        assert chosen(logits, 0.0, 0, 0, order) == 7


def test_the_spread_of_logits_gives_their_likelihood() -> None:
    random = np.random.default_rng(3)
    for count in (1, 15, 16, 200, CHUNK):
        logits = np.full(CHUNK, np.nan, np.float32)
        logits[:count] = 5 * random.standard_normal(count)
        room, out = np.full(CHUNK, np.nan, np.float32), np.zeros(2, np.float32)
        spread(logits.ctypes.data, count, room.ctypes.data, out.ctypes.data)
        mine = logits[:count].astype(np.float64)
        assert out[0] == logits[:count].max()
        assert out[1] == pytest.approx(np.exp(mine - mine.max()).sum(), rel=1e-5)
