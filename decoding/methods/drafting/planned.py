"""How many rows a forward gets: the part of a tree, and the masks beside it, that commit most for their time."""

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.engine.draft import Draft
from decoding.engine.records.row_costs import RowCosts
from decoding.methods.drafting.expected_tree import ExpectedTree

LEAST = 0.005
"""What a row must be expected to commit even where rows cost nothing: drafting takes time as well."""

STEP = 1.3
"""The ratio of the bars that are tried between the dearest and the cheapest row."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What rows cost in one round.

    prompts: behind which the text stands, each of which takes every row. pending: tokens that are fed before the draft. rate:
    tokens that are committed in the time of a plain step.
    """

    costs: RowCosts
    prompts: int
    pending: int
    rate: float

    def steps(self, rows: int) -> float:
        """Plain steps in the time of a forward with so many rows of a draft."""
        return self.costs.at(self.rows(rows)) / self.costs.at(self.prompts)

    def rows(self, rows: int) -> int:
        """All rows of a forward with so many of a draft."""
        return self.prompts * (self.pending + rows)

    def bars(self, most: int) -> list[float]:
        """What a row may have to commit, descending: from the dearest price to the cheapest among `most` rows."""
        scale = self.rate * self.prompts / self.costs.at(self.prompts)
        prices = [scale * price for price in self.costs.prices(self.prompts * (self.pending + most))]
        high, low = (min(max(price, LEAST), 0.99) for price in (max(prices), min(prices)))
        bars = [high]
        while bars[-1] > low:
            bars.append(max(bars[-1] / STEP, low))
        return bars


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes and, after each of them and the root (which comes last), a number of masks. bar: what each row commits at least.
    gain: what all of them are expected to commit.
    """

    tree: ExpectedTree
    masks: Sequence[int]
    bar: float
    gain: float

    @property
    def rows(self) -> int:
        return len(self.tree) + sum(self.masks)

    def draft(self, chain: Sequence[int]) -> Draft:
        """chain: the masks."""
        return self.tree.with_masks(chain, self.masks)


def planned(tree: ExpectedTree, mask_worths: Sequence[float], prices: Prices, bars: Sequence[float], most: int) -> Plan:
    """The plan of at most `most` rows that is expected to commit most beyond what its time would bring without it.

    tree: sorted, as from `expected_tree`. mask_worths: tokens that the masks after a node are worth, by depth, if the text
    leaves the tree there. A bar cuts off what commits less; the best of `bars`, descending, is taken, because where rows come
    in tiles a lower one may cost no more. Where all of them leave too many rows, the bar is raised.
    """
    plans = [_cut(tree, mask_worths, bar) for bar in bars]
    while plans[0].rows > most:
        plans.insert(0, _cut(tree, mask_worths, STEP * plans[0].bar))
    fitting = (plan for plan in plans if plan.rows <= most)
    return max(fitting, key=lambda plan: plan.gain - prices.rate * prices.steps(plan.rows))


def _cut(tree: ExpectedTree, mask_worths: Sequence[float], bar: float) -> Plan:
    part = tree.first(sum(worth >= bar for worth in tree.worths))
    ends = part.ends()
    masks = [_masks_after(end, mask_worths, bar) for end in ends]
    gain = sum(part.gains) + sum(
        end * sum(mask_worths[:count]) for end, count in zip(ends, masks, strict=True) if count
    )
    return Plan(part, masks, bar, gain)


def _masks_after(end: float, mask_worths: Sequence[float], bar: float) -> int:
    """How many masks a node deserves at which the text leaves the tree with this probability."""
    for depth, worth in enumerate(mask_worths):
        if end * worth < bar:
            return depth
    return len(mask_worths)
