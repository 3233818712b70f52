"""Threads that share work: every piece is done once, and none goes on before all have come."""

from itertools import pairwise

import numpy as np
import pytest

from kernels.cpu.emit import get_long, kernel, put_long
from kernels.cpu.processor import variant
from kernels.cpu.threads import WorkerPool, claim, claim_own, meet, thread_count

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
PHASES, PIECES = 6, 50


@kernel
def summed(thread, sync, numbers):  # type: ignore[no-untyped-def]
    """Each phase writes for each piece the sum of all that the last phase wrote, plus one."""
    for phase in range(PHASES):
        done, piece = 0, claim_own(sync, phase, PIECES, thread) if phase % 2 else claim(sync, phase)
        while piece < PIECES:
            total = 1
            for other in range(PIECES):
                total += get_long(numbers, phase * PIECES + other)
            place = (phase + 1) * PIECES + piece
            put_long(numbers, place, get_long(numbers, place) + total)
            done, piece = done + 1, claim_own(sync, phase, PIECES, thread) if phase % 2 else claim(sync, phase)
        meet(sync, phase, done, PIECES)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_phases_follow_each_other(threads: int) -> None:
    team = WorkerPool(threads, PHASES)
    for _ in range(50):
        numbers = np.zeros((PHASES + 1, PIECES), np.int64)
        team.run(summed, numbers.ctypes.data)
        for before, after in pairwise(numbers):
            assert (after == before.sum() + 1).all()


def test_work_is_done_without_the_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerPool, "_help", lambda *_: None)  # none ever comes
    numbers = np.zeros((PHASES + 1, PIECES), np.int64)
    team = WorkerPool(3, PHASES)
    for _ in range(2):  # the second call finds them still on their way
        team.run(summed, numbers.ctypes.data)
    assert numbers[-1].min() == numbers[-1].max() > 0


def test_a_caller_may_work_alone() -> None:
    alone, together = np.zeros((2, PHASES + 1, PIECES), np.int64)
    team = WorkerPool(3, PHASES)
    team.run_alone(summed, alone.ctypes.data)
    assert not team._resting, "no helper was started"
    team.run(summed, together.ctypes.data)
    np.testing.assert_array_equal(alone, together)


def test_the_number_of_threads_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert thread_count() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= thread_count() <= 16
