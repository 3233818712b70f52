"""Random choices that are the same on every machine and Python: only `Random.random`, whose sequence is guaranteed."""

import random
from collections.abc import Sequence
from datetime import date, timedelta
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """A seeded source of choices. (`choice` and `shuffle` of the standard library may change between versions.)"""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return self._random.random() < probability

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, each as likely."""
        return items[self.between(0, len(items) - 1)]

    def weighted(self, items: Sequence[T], weights: Sequence[float]) -> T:
        """One of the items, as likely as its weight says."""
        sums = list(accumulate(weights))
        point = self._random.random() * sums[-1]
        return next(item for item, total in zip(items, sums, strict=True) if point < total)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order."""
        return [item for _, item in sorted(((self._random.random(), item) for item in items), key=lambda pair: pair[0])]

    def day(self, first: date, last: date) -> date:
        """A day from `first` to `last`, both included."""
        return first + timedelta(days=self.between(0, (last - first).days))
