"""The int8 target's cache: bounded, and full pages shared without a copy."""

import numpy as np
import numpy.typing as npt
import pytest

from decoding.engine.draft import Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import Work
from decoding.targets.int8 import pages
from decoding.targets.int8.cpu_target import CpuSequence, CpuTarget
from kernels.cpu.processor import variant
from tests.decoding.targets.test_cpu_target import LONG, PROMPT, fed, fresh

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")


def test_the_cache_is_bounded_and_can_be_off() -> None:
    off = fresh(cache_bytes=0)
    off.close(_committed(off, LONG))
    assert off.open(LONG, Sampler()).cached == 0
    page = 2 * 2 * 2 * 64 * 64 * 4  # layers, heads, keys and values, padded head, positions, bytes
    small = fresh(cache_bytes=3 * page)
    small.close(_committed(small, LONG))
    small.close(_committed(small, PROMPT))
    assert small.open(LONG, Sampler()).cached == len(LONG) - 1
    small.close(_committed(small, (9, 9, 9)))
    assert small.open(PROMPT, Sampler()).cached == 0, "the least recently used went"


def test_keys_of_a_new_page_are_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are taken of whole pages; what memory held before may be numbers that slow every product a hundredfold."""

    def used(shape: tuple[int, ...], dtype: type) -> npt.NDArray[np.float32]:
        return np.full(shape, 1e-40, dtype)

    monkeypatch.setattr(pages, "aligned", used)
    cache = pages.Pages(2, 64)
    cache.reserve(100)
    assert [np.count_nonzero(page[:, 0]) for page in cache.pages] == [0, 0]


def _committed(target: CpuTarget, tokens: tuple[int, ...]) -> CpuSequence:
    sequence, _ = fed(target, tokens)
    target.commit(sequence, [])
    return sequence


def test_full_pages_are_shared_and_a_chain_moves_nothing() -> None:
    target = fresh()
    first = _committed(target, LONG)
    second = target.open((*LONG[:80], 4, 4), Sampler())
    assert second.cached == 80
    assert second.cache.pages[0] is first.cache.pages[0]
    assert second.cache.pages[1] is not first.cache.pages[1]
    before = first.cache.pages[1].copy()
    target.score([Work(second, (4, 4), Draft.chain((1, 2)))])
    staged = second.cache.pages[1].tobytes()
    target.commit(second, [0, 1])
    assert (second.cached, second.cache.pages[1].tobytes() == staged) == (84, True)
    assert first.cache.pages[1].tobytes() == before.tobytes()
    third = target.fork(second, Sampler(1.0, 3))
    assert (third.cached, third.cache.pages[0] is second.cache.pages[0]) == (84, True)
