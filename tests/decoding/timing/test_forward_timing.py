"""Guards the cost model: each size is timed with its own rows, at its own context, and nothing stays open."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from decoding.engine.target import ForwardInput, ForwardOutput
from decoding.targets.fast_target import FastSequence, FastTarget
from decoding.timing import time_forward
from tests.decoding.models.tiny_models import tiny_checkpoint


class Slow(FastTarget):
    """Takes a millisecond for each row and for each 10 cached tokens."""

    def score(self, work: Sequence[ForwardInput[FastSequence]]) -> list[ForwardOutput]:
        scores = super().score(work)
        time.sleep(sum(len(one.pending) + len(one.draft) + one.sequence.cached / 10 for one in work) / 1e3)
        return scores

    def close(self, sequence: FastSequence) -> None:
        super().close(sequence)
        self.closed = [*getattr(self, "closed", []), sequence.cached]


def test_each_size_takes_its_own_time(tmp_path: Path) -> None:
    target = Slow.load(tiny_checkpoint(tmp_path))
    times = time_forward(target, [20, 200], [0, 30], repeats=3)
    assert list(times) == [(20, 0), (20, 30), (200, 0), (200, 30)]
    for (context, nodes), ms in times.items():
        assert ms >= 1 + nodes + context / 10
    assert times[20, 0] < times[20, 30] < times[200, 30]
    assert target.closed == [20, 200], "closed, and the context did not grow while it was measured"  # type: ignore[attr-defined]


class Fickle(FastTarget):
    """Takes long after a forward of another size."""

    last = -1

    def score(self, work: Sequence[ForwardInput[FastSequence]]) -> list[ForwardOutput]:
        (nodes,) = (len(one.draft) for one in work)
        if nodes != self.last:
            time.sleep(0.3)
        self.last = nodes
        return super().score(work)


def test_each_size_is_measured_after_its_like(tmp_path: Path) -> None:
    times = time_forward(Fickle.load(tiny_checkpoint(tmp_path)), [20], [0, 30], repeats=2)
    assert max(times.values()) < 300


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    target = FastTarget.load(tiny_checkpoint(tmp_path))
    assert set(time_forward(target, [503], [8], repeats=1)) == {(503, 8)}
    with pytest.raises(ValueError, match="context of 504 and 8 nodes"):
        time_forward(target, [504], [8])
