"""The int8 target's cache: bounded, and full pages shared without a copy."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.targets.int8 import buffers
from decoding.targets.int8.cpu_target import CpuSequence, CpuTarget
from kernels.cpu.job import plane_bytes
from kernels.cpu.processor import variant
from tests.decoding.targets.test_cpu_target import LONG, PROMPT, fed, fresh

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")


def test_the_cache_is_bounded_and_can_be_off() -> None:
    off = fresh(cache_bytes=0)
    off.close(_committed(off, LONG))
    assert off.open(LONG, Sampler()).cached == 0
    page = 2 * 2 * plane_bytes(64)  # layers, heads, padded head
    small = fresh(cache_bytes=3 * page)
    small.close(_committed(small, LONG))
    small.close(_committed(small, PROMPT))
    assert small.open(LONG, Sampler()).cached == len(LONG) - 1
    small.close(_committed(small, (9, 9, 9)))
    assert small.open(PROMPT, Sampler()).cached == 0, "the least recently used went"


@pytest.mark.parametrize("layout", [buffers.FloatLayout(2, 64), buffers.ByteLayout(2, 64)])
def test_what_scores_are_made_of_begins_as_zeros(layout: buffers.Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are taken of whole pages; what memory held before may be no number, or one that slows every product a
    hundredfold.
    """

    def used(shape: tuple[int, ...], dtype: type) -> npt.NDArray[Any]:
        return np.full(shape, 255, dtype)

    monkeypatch.setattr(buffers, "aligned", used)
    cache = buffers.Pages(layout)
    cache.reserve(100)
    for page in cache.pages:
        floats = layout.at(page, 7)[0 if page.dtype == np.float32 else 2]
        assert np.count_nonzero(page) and not np.count_nonzero(floats)


@pytest.mark.parametrize("layout", [buffers.FloatLayout(2, 64), buffers.ByteLayout(2, 64)])
def test_a_position_is_moved_whole(layout: buffers.Layout) -> None:
    cache, random = buffers.Pages(layout), np.random.default_rng(0)
    cache.reserve(128)
    for page in cache.pages:
        page[...] = random.integers(0, 100, page.shape)
    before = [page.copy() for page in cache.pages]
    cache.compact(60, [0, 2, 9])
    for index, row in enumerate((0, 2, 9)):
        (old_page, old), (new_page, new) = (divmod(60 + each, 64) for each in (row, index))
        pairs = zip(layout.at(before[old_page], old), layout.at(cache.pages[new_page], new), strict=True)
        assert all(np.array_equal(*pair) for pair in pairs)
        for was, moved in zip(before, cache.pages, strict=True):
            assert (was != moved).sum() <= 2 * sum(part.size for part in layout.at(was, 0)), "and nothing else"


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
    target.score([ForwardInput(second, (4, 4), Draft.chain((1, 2)))])
    staged = second.cache.pages[1].tobytes()
    target.commit(second, [0, 1])
    assert (second.cached, second.cache.pages[1].tobytes() == staged) == (84, True)
    assert first.cache.pages[1].tobytes() == before.tobytes()
    third = target.fork(second, Sampler(1.0, 3))
    assert (third.cached, third.cache.pages[0] is second.cache.pages[0]) == (84, True)
