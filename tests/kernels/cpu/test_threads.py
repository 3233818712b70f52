"""Threads that share work: every piece is done once, and none goes on before all have come."""

from itertools import pairwise

import numpy as np
import pytest
from numba import njit

from kernels.cpu.emit import get_long, put_long
from kernels.cpu.processor import variant
from kernels.cpu.threads import Team, claim, thread_count, wait

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
PHASES, PIECES = 6, 50


@njit(nogil=True)
def doubled(thread, threads, sync, numbers):  # type: ignore[no-untyped-def]
    """Each phase writes for each piece the sum of all that the last phase wrote, plus one."""
    for phase in range(PHASES):
        while True:
            piece = claim(sync, phase)
            if piece >= PIECES:
                break
            total = 1
            for other in range(PIECES):
                total += get_long(numbers, phase * PIECES + other)
            put_long(numbers, (phase + 1) * PIECES + piece, get_long(numbers, (phase + 1) * PIECES + piece) + total)
        wait(sync, threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_phases_follow_each_other(threads: int) -> None:
    team = Team(threads, PHASES)
    for _ in range(20):
        numbers = np.zeros((PHASES + 1, PIECES), np.int64)
        team.run(doubled, numbers.ctypes.data)
        for before, after in pairwise(numbers):
            assert (after == before.sum() + 1).all()


def test_the_number_of_threads_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert thread_count() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= thread_count() <= 16
