"""What the rows of a forward cost, in plain steps: a small table, measured once for a machine and a model, or a default."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


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
VARIANT_COSTS = {
    "amx_int8": RowCosts((1, 2, 8, 16, 32, 64), (1.0, 1.1, 1.3, 1.5, 2.05, 3.3)),
    "avx2": RowCosts((1, 4, 8, 16, 32), (1.0, 1.45, 2.2, 4.0, 7.3)),
}
"""By the variant of our kernels, where rows do not cost what they cost elsewhere; until a machine's own were measured."""


def default_costs(runtime: str) -> RowCosts:
    """For a target that runs on this (`Target.runtime`)."""
    if runtime != "kernels":
        return DEFAULT_COSTS
    from kernels.cpu.processor import variant

    return VARIANT_COSTS.get(variant() or "", DEFAULT_COSTS)
