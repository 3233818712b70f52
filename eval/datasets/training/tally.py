"""Counts what a build made, and what it left out and why."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts of `golds` by outcome, `pairs` by "source step dialect", and `left_out` by reason.

    A second question counts as "source follow-up kind step dialect", without "follow-up" if no history is shown.
    """

    golds: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Add the other's counts."""
        for mine, others in ((self.golds, other.golds), (self.pairs, other.pairs), (self.left_out, other.left_out)):
            mine.update(others)
