"""What decoding has seen so far, and what the tokens of a forward cost.

`RowCosts` is a small table, measured once for a machine and a model, or a default: how long a forward of so many tokens takes,
in plain steps. `AcceptanceStats` has how often guesses were right, what rounds commit, and what drafts take. Both hold counts
and times only, no texts. A text starts with the statistics of earlier texts of its kind, and updates them.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class RowCosts:
    """rows: ascending, from 1. steps: what a forward of so many rows takes, in forwards of one row.

    Between two entries time grows linearly, and beyond the last as between the last two. Raises ValueError.

    >>> tiles = RowCosts((1, 16, 32), (1.0, 1.15, 2.0))
    >>> round(tiles.at(8), 3), tiles.at(16), round(tiles.at(48), 2)
    (1.07, 1.15, 2.85)
    """

    rows: tuple[int, ...]
    steps: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.steps) or len(self.rows) < 2 or self.rows[0] != 1:
            raise ValueError("a table of row costs begins with one row and has two entries or more")
        if any(low >= high for low, high in pairwise(self.rows)) or min(self.steps) <= 0.0:
            raise ValueError("rows must ascend and forwards take time")

    @classmethod
    def even(cls, row: float) -> "RowCosts":
        """Every row costs the same share of a plain step."""
        return cls((1, 2), (1.0, 1.0 + row))

    @classmethod
    def measured(cls, rows: Sequence[int], milliseconds: Sequence[float]) -> "RowCosts":
        """From times of forwards. One with more rows is never cheaper than one with fewer: noise must not promise a gain."""
        steps = [max(milliseconds[: count + 1]) / milliseconds[0] for count in range(len(rows))]
        return cls(tuple(rows), tuple(steps))

    def scaled(self, scale: float) -> "RowCosts":
        """Further rows cost so many times as much."""
        return RowCosts(self.rows, tuple(1.0 + scale * (steps - 1.0) for steps in self.steps))

    def at(self, rows: int) -> float:
        """Plain steps in the time of a forward of so many rows, 1 or more."""
        end = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        (left, right), (low, high) = self.rows[end - 1 : end + 1], self.steps[end - 1 : end + 1]
        return low + (high - low) * (rows - left) / (right - left)

    def prices(self, most: int) -> list[float]:
        """What one more row costs, span by span, for forwards of up to `most` rows."""
        spans = zip(pairwise(self.rows), pairwise(self.steps), strict=True)
        return [(high - low) / (right - left) for (left, right), (low, high) in spans if left <= most]


DEFAULT_COSTS = RowCosts.even(0.06)
GPU_COSTS = RowCosts((1, 64, 128, 256), (1.0, 1.14, 1.28, 1.47))
"""A model of 7 B in bf16 on an H100 (log/gpu.md); until a machine's own were measured."""
VARIANT_COSTS = {
    "amx_int8": RowCosts((1, 2, 8, 16, 32, 64), (1.0, 1.1, 1.3, 1.5, 2.05, 3.3)),
    "avx2": RowCosts((1, 4, 8, 16, 32), (1.0, 1.45, 2.2, 4.0, 7.3)),
}
"""By the variant of our kernels, where rows do not cost what they cost elsewhere; until a machine's own were measured."""


def default_costs(runtime: str) -> RowCosts:
    """For a target that runs on this (`Target.runtime`)."""
    if runtime != "kernels":
        return GPU_COSTS if runtime == "cuda" else DEFAULT_COSTS
    from kernels.cpu.processor import variant

    return VARIANT_COSTS.get(variant() or "", DEFAULT_COSTS)


TRUST = 40.0
"""Observations that a shipped prior counts as much as, against those of the texts that were decoded here."""

LIMIT = 2000.0
"""Observations of a kind that are remembered: from there on older ones fade."""

WIDEST = 4.0
"""The most that rows may be costlier or cheaper than a table says."""

RECENT = 15
"""Forwards that say what is usual at present: a pause of the machine, or a first forward that compiles, is not."""


class RunningMeans:
    """Means of what was seen, by case, and a prior that counts as much as `weight` observations of each case.

    whole: is told the same, and outlives these. limit: observations of a case before older ones are halved.

    >>> shares = RunningMeans((0.5, 0.9), weight=2.0)
    >>> shares.saw(0, True)
    >>> round(shares[0], 2), shares[1], shares[7]  # cases past the last are like the last
    (0.67, 0.9, 0.9)
    """

    def __init__(
        self, prior: Sequence[float], weight: float = 8.0, whole: "RunningMeans | None" = None, limit: float = LIMIT
    ) -> None:
        self._sums = [mean * weight for mean in prior]
        self._seen = [weight] * len(prior)
        self._prior = tuple(self._sums), weight
        self._new = [0.0] * len(prior)
        self._whole, self._limit = whole, limit

    def __len__(self) -> int:
        return len(self._seen)

    def __getitem__(self, case: int) -> float:
        case = min(case, len(self._seen) - 1)
        return self._sums[case] / self._seen[case]

    def seen(self, case: int) -> float:
        """Observations of a case that are remembered, other texts' among them, the prior not."""
        return self._whole.seen(case) if self._whole else self._new[min(case, len(self._new) - 1)]

    def saw(self, case: int, value: float) -> None:
        """Count an observation."""
        case = min(case, len(self._seen) - 1)
        self._sums[case] += value
        self._seen[case] += 1
        self._new[case] += 1
        if self._seen[case] > self._limit:
            for values in (self._sums, self._seen, self._new):
                values[case] /= 2
        if self._whole:
            self._whole.saw(case, value)

    def fade(self, share: float) -> None:
        """Forget a share of what was seen, so that the means go back to the prior.

        >>> shares = RunningMeans((0.5,), weight=1.0)
        >>> shares.saw(0, True)
        >>> shares.fade(0.5)
        >>> round(shares[0], 2)
        0.67
        """
        sums, weight = self._prior
        self._sums = [prior + (1.0 - share) * (held - prior) for prior, held in zip(sums, self._sums, strict=True)]
        self._seen = [weight + (1.0 - share) * (held - weight) for held in self._seen]

    def text(self) -> "RunningMeans":
        """Those of one more text, which begin with these means and are counted here, too."""
        return RunningMeans([self[case] for case in range(len(self))], whole=self)


class Rate:
    """Tokens committed in the time of a plain step, so far; a prior counts as much as `steps` of it. whole: as above."""

    def __init__(
        self, prior: float = 2.5, steps: float = 8.0, whole: "Rate | None" = None, limit: float = LIMIT
    ) -> None:
        self._tokens, self._steps = prior * steps, steps
        self._whole, self._limit = whole, limit

    @property
    def tokens_per_step(self) -> float:
        return self._tokens / self._steps

    def saw(self, tokens: int, steps: float) -> None:
        """Count a round."""
        self._tokens += tokens
        self._steps += steps
        if self._steps > self._limit:
            self._tokens, self._steps = self._tokens / 2, self._steps / 2
        if self._whole:
            self._whole.saw(tokens, steps)

    def text(self) -> "Rate":
        """That of one more text, which begins with this rate and is counted here, too."""
        return Rate(self.tokens_per_step, whole=self)


class RowTimes:
    """What rows cost here, where a table says what they should cost: the slope of forwards' times over it, by least squares.

    One pause would turn that for thousands of forwards, so a time counts only as far as rows can explain it.

    >>> times = RowTimes()
    >>> for further in (0.0, 0.5, 1.0) * 100:
    ...     times.saw(further, 5.0 * (1.0 + 2.0 * further))
    >>> round(times.scale, 1)
    1.9
    """

    def __init__(self, limit: float = LIMIT) -> None:
        self._sums = [0.0] * 5  # of 1, further steps, their squares, milliseconds, both multiplied
        self._recent: deque[float] = deque(maxlen=RECENT)  # milliseconds by step of the table
        self._limit = limit

    def saw(self, further: float, ms: float) -> None:
        """Count a forward. further: plain steps beyond the first that its rows should take by the table."""
        self._recent.append(ms / (1.0 + further))
        if 2 * len(self._recent) < RECENT:
            return  # what is usual is not known yet
        ms = min(ms, WIDEST * median(self._recent) * (1.0 + further))
        seen = (1.0, further, further * further, ms, further * ms)
        fade = 0.5 if self._sums[0] > self._limit else 1.0
        self._sums = [fade * total + new for total, new in zip(self._sums, seen, strict=True)]

    @property
    def scale(self) -> float:
        """What to multiply the cost of further rows with; 1 before anything was seen."""
        count, further, squares, ms, both = self._sums
        spread, slope = count * squares - further * further, count * both - further * ms
        base = ms * squares - further * both
        if count < TRUST or min(spread, base) <= 0.0:
            return 1.0
        found = min(max(slope / base, 1.0 / WIDEST), WIDEST)
        return (count * found + TRUST) / (count + TRUST)


class AcceptanceStats:
    """Of one loaded model. Written by the thread that decodes.

    >>> experience = AcceptanceStats()
    >>> for _ in range(40):
    ...     experience.of("plan").means("right", (0.5,)).saw(0, True)
    >>> experience.of("plan").means("right", (0.5,))[0], experience.of("sql").means("right", (0.5,))[0]
    (0.75, 0.5)
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}
        self._kind: tuple[Hashable, ...] = ()

    def of(self, *kind: Hashable) -> "AcceptanceStats":
        """The part that texts of one kind have written."""
        part = AcceptanceStats()
        part._kept, part._kind = self._kept, (*self._kind, *kind)
        return part

    def means(self, name: str, prior: Sequence[float], forgotten: float = 0.0) -> RunningMeans:
        """A text's own, of a method's quantity. prior: what is known before any text was decoded here. forgotten: the share of
        what earlier texts taught that is forgotten first, where a bad beginning would end all observation.
        """
        whole: RunningMeans = self._kept.setdefault((self._kind, name), RunningMeans(prior, TRUST))
        if forgotten:
            whole.fade(forgotten)
        return whole.text()

    def rate(self) -> Rate:
        """A text's own."""
        whole: Rate = self._kept.setdefault((self._kind, Rate), Rate(steps=TRUST))
        return whole.text()

    def row_times(self) -> RowTimes:
        """Those of all texts of the kind."""
        times: RowTimes = self._kept.setdefault((self._kind, RowTimes), RowTimes())
        return times
