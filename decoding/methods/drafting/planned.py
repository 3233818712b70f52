"""How many rows a forward gets: the part of a tree, and the masks beside it, that commit most for their time.

Times are in plain steps: forwards of one row behind each of the text's prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.engine.draft import Draft
from decoding.engine.method import Context
from decoding.engine.records.row_costs import RowCosts, default_costs
from decoding.methods.drafting.expected_tree import ExpectedTree

LEAST = 0.005
"""What a row must be expected to commit even where rows cost nothing: drafting takes time as well."""

STEP = 1.3
"""The ratio of the bars that are tried between the dearest and the cheapest row."""

DRAFT_STEPS = 0.4
"""What a head's draft takes, as long as it is neither given nor timed."""

BESIDE_FORWARDS = (0.08, 0.17)
"""Prior of what drafting takes in a round without masks, and what drafting and asking masks take in one with them."""

LONGEST = 2.0
"""What is counted of a draft that took longer: the first one loads and compiles."""


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


class RoundCosts:
    """What the rounds of one text take and bring, as its context tells, and corrected by what rounds took before.

    row_cost: of a row, if it is not 0. draft_cost: of a head's draft, if it is not 0. What is given is not corrected, and
    where nothing is left to be measured, because there is no head or its draft's cost is given too, no time counts.
    """

    def __init__(self, context: Context, row_cost: float, draft_cost: float, has_head: bool) -> None:
        self._told = context.row_costs or default_costs(context.runtime)
        self._times, self._rate = context.experience.row_times(), context.experience.rate()
        self._costs = RowCosts.even(row_cost) if row_cost else self._told.scaled(self._times.scale)
        self._prompts, self._draft_cost = context.prompts, draft_cost or DRAFT_STEPS
        self._times_rows, self._times_drafts = not row_cost, not draft_cost and (has_head or not row_cost)
        self._beside = context.experience.means("plain steps beside forwards", BESIDE_FORWARDS)
        self._took = (0.0, 0.0)

    @property
    def rate(self) -> float:
        """Tokens that are committed in the time of a plain step."""
        return self._rate.tokens_per_step

    def prices(self, pending: int) -> Prices:
        """Of the next round. pending: tokens that are fed before its draft."""
        return Prices(self._costs, self._prompts, pending, self.rate)

    @property
    def mask_steps(self) -> float:
        """How much longer a round with masks takes, beyond its rows; nothing where no time counts."""
        return max(self._beside[1] - self._beside[0], 0.0) if self._times_drafts else 0.0

    def took(self, draft_ms: float, target_ms: float) -> None:
        """The times of the round that is counted next, where they are known."""
        self._took = draft_ms, target_ms

    def count(
        self, pending: int, rows: int, tokens: int, is_by_head: bool, has_masks: bool = False, asked_ms: float = 0.0
    ) -> float:
        """Count a round that committed so many tokens, and return what it took. rows: of its draft. asked_ms: what asking its
        masks took.
        """
        (draft_ms, target_ms), self._took = self._took, (0.0, 0.0)
        prices = self.prices(pending)
        forward = prices.steps(rows)
        draft = self._draft_cost * is_by_head
        if target_ms and self._times_rows:
            self._times.saw(self._told.at(prices.rows(rows)) - 1.0, target_ms)
        if target_ms and self._times_drafts:
            draft = min(forward * (draft_ms + asked_ms) / target_ms, LONGEST)
            self._beside.saw(has_masks, draft)
        self._rate.saw(tokens, forward + draft)
        return forward + draft


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


def planned(
    tree: ExpectedTree,
    mask_worths: Sequence[float],
    prices: Prices,
    bars: Sequence[float],
    most: int,
    mask_steps: float = 0.0,
) -> Plan:
    """The plan of at most `most` rows that is expected to commit most beyond what its time would bring without it.

    tree: sorted, as from `expected_tree`. mask_worths: tokens that the masks after a node are worth, by depth, if the text
    leaves the tree there. A bar cuts off what commits less; the best of `bars`, descending, is taken, because where rows come
    in tiles a lower one may cost no more. Where all of them leave too many rows, the bar is raised. mask_steps: what masks cost
    beyond their rows, which may be more than they bring.
    """
    plans = [_cut(tree, mask_worths, bar) for bar in bars]
    while plans[0].rows > most:
        plans.insert(0, _cut(tree, mask_worths, STEP * plans[0].bar))
    if mask_worths and mask_steps:
        plans += [_cut(tree, (), bar) for bar in bars]
    fitting = (plan for plan in plans if plan.rows <= most)
    return max(
        fitting,
        key=lambda plan: plan.gain - prices.rate * (prices.steps(plan.rows) + mask_steps * any(plan.masks)),
    )


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
