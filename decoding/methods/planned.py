"""Plans a draft: the tree whose expected tokens are worth their cost.

Every proposer gives a guess a probability; a node's is the product along its path. In the time of one plain step the target
commits one token, and with drafts several; a node pays if what it is expected to commit exceeds what would be committed in its
time without it. A token that the constraint forces is committed anyway: its node only leads to the token after it. So a guess
before forced tokens must pay for their nodes, too, but only as far as it is wrong: else the next forward would need them.

Times are in plain steps: forwards of one token after each of the text's prompts.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from math import inf, log
from typing import Any, NamedTuple

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.experience import RowCosts, default_costs
from decoding.engine.method import Context

WIDTH = 12
"""Nodes of one depth whose continuations are asked for."""


@dataclass(slots=True)
class Reached:
    """A node whose continuations are wanted. parent: its place in the level above; cursor: the constraint's after it."""

    path: tuple[int, ...]
    chance: float  # of being committed
    worth: float  # what a row on the way to it is expected to commit
    parent: int
    cursor: ConstraintCursor | None
    least: float  # the lowest probability that a continuation may have
    stops: float = 0.0  # the probability of being committed and of the text's ending there

    @property
    def floor(self) -> float:
        """`least` as a log-probability."""
        return log(self.least) if self.least > 0.0 else -inf


Continuations = Callable[[Sequence[Reached]], Iterable[Mapping[int, float]]]
"""The nodes of one level, from the root on -> for each, guesses for the next token and their probabilities."""


@dataclass(slots=True)
class ExpectedTree:
    """Nodes in topological order, best first.

    chances: of each node to be committed. worths: what a row on the way to it is expected to commit. gains: what the node
    itself commits beyond its parent, none where the constraint forces the token after it. stops: that the text ends just after
    it; `root_stops`: after the root.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    worths: list[float] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    root_stops: float = field(default=0.0, kw_only=True)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, chance: float, worth: float, gain: float) -> int:
        """Add a node and return its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        self.worths.append(worth)
        self.gains.append(gain)
        self.stops.append(0.0)
        return len(self.tokens) - 1

    def note_stops(self, nodes: Sequence[int], reached: Sequence[Reached]) -> None:
        """What is known of the text's ending after some nodes."""
        for node, each in zip(nodes, reached, strict=True):
            if node == ROOT:
                self.root_stops = each.stops
            else:
                self.stops[node] = each.stops

    def best(self, count: int) -> "ExpectedTree":
        """The nodes of most worth, sorted; no node is worth more than its parent, so parents come first."""
        order = sorted(range(len(self)), key=lambda node: -self.worths[node])[:count]
        place = {node: index for index, node in enumerate(order)} | {ROOT: ROOT}
        tokens, parents, *others = ([values[node] for node in order] for values in self._columns())
        return ExpectedTree(tokens, [place[parent] for parent in parents], *others, root_stops=self.root_stops)

    def first(self, count: int) -> "ExpectedTree":
        """The first nodes: the best ones of a sorted tree."""
        return ExpectedTree(*(values[:count] for values in self._columns()), root_stops=self.root_stops)

    def _columns(self) -> Sequence[list[Any]]:
        return self.tokens, self.parents, self.chances, self.worths, self.gains, self.stops

    def paths(self) -> list[tuple[int, ...]]:
        """The tokens from the root to each node."""
        found: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            found.append((*(found[parent] if parent != ROOT else ()), token))
        return found

    def ends(self) -> list[float]:
        """That the text leaves the tree just after each node, and does not end there; the root's comes last."""
        ends = [
            chance - stops for chance, stops in zip((*self.chances, 1.0), (*self.stops, self.root_stops), strict=True)
        ]
        for parent, chance in zip(self.parents, self.chances, strict=True):
            ends[parent] -= chance
        return ends

    def with_masks(self, chain: Sequence[int], counts: Sequence[int]) -> Draft:
        """The draft, with the first masks of a chain after every node, as many as `counts` says; the root's comes last.

        All nodes are scored, even where a constraint forbids them.
        """
        tokens, parents = list(self.tokens), list(self.parents)
        for node, count in zip([*range(len(self)), ROOT], counts, strict=True):
            for place, mask in enumerate(chain[:count]):
                parents.append(len(tokens) - 1 if place else node)
                tokens.append(mask)
        return Draft(tuple(tokens), tuple(parents), context=range(len(tokens)), masks=tuple(chain))


def expected_tree(
    continuations: Continuations,
    least: Sequence[float],
    room: int,
    cursor: ConstraintCursor | None,
    width: int = WIDTH,
) -> ExpectedTree:
    """The prefixes of at most `room` tokens whose rows are worth most. least: what the best node must be worth, what the second
    best, and so on, ascending; the tree has no more nodes than that.

    Grown level by level, so that a drafter is asked once for each. width: the best nodes of a level that get children.
    `cursor` is the constraint's at the root; a token that it forces is certain, and forbidden ones are left to it.
    """
    tree, bars = ExpectedTree(), _Bars(least)
    level, nodes = [Reached((), 1.0, 1.0, 0, cursor, least[0])], [ROOT]
    while level and len(level[0].path) < room:
        found = sorted(_children(level, continuations(level), bars), key=lambda child: -child.worth)
        tree.note_stops(nodes, level)
        above, level, nodes = nodes, [], []
        for child in found:
            if not bars.takes(child.worth):
                break
            gain = 0.0 if child.cursor is not None and child.cursor.run else child.chance
            node = tree.add(child.path[-1], above[child.parent], child.chance, child.worth, gain)
            if len(level) < width:
                level.append(child)
                nodes.append(node)
    return tree.best(len(least))


class _Bars:
    """What a further node must be worth, given how many better ones there are. least: of the best, the second best, ..."""

    def __init__(self, least: Sequence[float]) -> None:
        self._least, self.lowest = (*least, inf), least[0]
        self._negated: list[float] = []  # the worths so far, negative and so ascending

    def of(self, worth: float) -> float:
        """The bar of a node that is worth this."""
        return self._least[min(bisect_left(self._negated, -worth), len(self._least) - 1)]

    def takes(self, worth: float) -> bool:
        """Count a node, if it reaches its bar."""
        if worth < self.of(worth):
            return False
        insort(self._negated, -worth)
        return True


def _children(level: Sequence[Reached], guesses: Iterable[Mapping[int, float]], bars: _Bars) -> Iterator[Reached]:
    """The continuations of a level's nodes that may be worth their rows."""
    for place, (node, shares) in enumerate(zip(level, guesses, strict=True)):
        forced = node.cursor is not None and node.cursor.run
        for token, share in ({forced[0]: 1.0} if forced else shares).items():
            chance = node.chance * share
            most = min(chance, node.worth)
            if most < bars.lowest or most < bars.of(most):
                continue
            cursor = node.cursor and node.cursor.after(token)
            if cursor is not None and cursor.ended:
                node.stops += chance  # the target ends the text by itself
                continue
            run = len(cursor.run) if cursor is not None and not forced else 0
            rows = 1 + run * (1.0 - chance)  # what is forced needs its rows in the next forward if not in this one
            worth = min(chance / rows, node.worth)
            if worth >= (bar := bars.of(worth)):
                yield Reached((*node.path, token), chance, worth, place, cursor, bar / chance)


LEAST = 0.005
"""What a row must be expected to commit even where rows cost nothing: drafting takes time as well."""

MOST = 0.99
"""The highest bar: whatever rows cost, a guess that is all but certain gets one."""

STEP = 1.3
"""The ratio of the bars that are tried between the costliest and the cheapest row."""

_FEW = 8  # rows of a draft among which the next forward's rows for forced tokens are

LONGEST_ASKING = 0.3
"""What is counted of asking that took longer: the first time packs rows of the LM head."""

LONGEST = 2.0
"""What is counted of a draft that took longer: the first one loads and compiles."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What rows cost in one round.

    prompts: that the text continues, each of which takes every row. pending: tokens that are fed before the draft. rate:
    tokens that are committed in the time of a plain step.
    """

    costs: RowCosts
    prompts: int
    pending: int
    rate: float

    def steps(self, rows: int) -> float:
        """Plain steps in the time of a forward with so many rows of a draft."""
        return self.costs.at(self.rows(rows)) / self.costs.at(self.prompts)

    @property
    def row(self) -> float:
        """What one of the first rows of a draft must commit."""
        return self.rate * (self.steps(_FEW) - self.steps(0)) / _FEW

    def rows(self, rows: int) -> int:
        """All rows of a forward with so many of a draft."""
        return self.prompts * (self.pending + rows)

    def least(self, most: int) -> list[float]:
        """The least that each of `most` rows must commit: the price of that row, or of a cheaper one after it. Ascending."""
        scale = self.rate / self.costs.at(self.prompts)
        prices = _cheapest(self.costs, self.prompts, self.pending, most)
        return [min(max(scale * price, LEAST), MOST) for price in prices]

    def bars(self, most: int) -> list[float]:
        """What a row may have to commit, descending: from the highest price to the lowest among `most` rows."""
        scale = self.rate * self.prompts / self.costs.at(self.prompts)
        prices = [scale * price for price in self.costs.prices(self.prompts * (self.pending + most))]
        high, low = (min(max(price, LEAST), MOST) for price in (max(prices), min(prices)))
        bars = [high]
        while bars[-1] > low:
            bars.append(max(bars[-1] / STEP, low))
        return bars


@lru_cache(maxsize=256)
def _cheapest(costs: RowCosts, prompts: int, pending: int, most: int) -> tuple[float, ...]:
    """The price of each row of a draft (see `Prices`) or of a cheaper one after it, in forwards of one row."""
    times = [costs.at(prompts * (pending + rows)) for rows in range(most + 1)]
    prices = [high - low for low, high in pairwise(times)]
    return tuple(accumulate(reversed(prices), min))[::-1]


class RoundCosts:
    """What the rounds of one text take and bring, as its context tells, and corrected by what rounds took before.

    row_cost: of a row, if it is not 0. draft_cost: of a head's draft, if it is not 0. What is given is not corrected, and
    where nothing is left to be measured, because there is no head or its draft's cost is given too, no time counts.
    """

    def __init__(self, context: Context, row_cost: float, draft_cost: float, has_head: bool) -> None:
        self._told = context.row_costs or default_costs(context.runtime)
        self._times, self._rate = context.experience.row_times(), context.experience.rate()
        self._costs = RowCosts.even(row_cost) if row_cost else self._told.scaled(self._times.scale)
        self._prompts, self._draft_cost = context.prompts, draft_cost or context.draft_priors.draft_steps
        self._times_rows, self._times_drafts = not row_cost, not draft_cost and (has_head or not row_cost)
        self._asking = context.experience.means("plain steps of asking masks", (context.draft_priors.asking,))
        self._took = (0.0, 0.0)

    @property
    def rate(self) -> float:
        """Tokens that are committed in the time of a plain step."""
        return self._rate.tokens_per_step

    def prices(self, pending: int, kept: float = 1.0) -> Prices:
        """Of the next round. pending: tokens that are fed before its draft. kept: the tokens that trees have brought, of
        those that they were expected to.
        """
        return Prices(self._costs, self._prompts, pending, self.rate / kept)

    @property
    def mask_steps(self) -> float:
        """How much longer a round with masks takes, beyond its rows; nothing where no time counts."""
        return self._asking[0] if self._times_drafts else 0.0

    def took(self, draft_ms: float, target_ms: float) -> None:
        """The times of the round that is counted next, where they are known."""
        self._took = draft_ms, target_ms

    def count(
        self,
        pending: int,
        rows: int,
        tokens: int,
        is_by_head: bool,
        asked_ms: float | None = None,
        read_ms: float = 0.0,
    ) -> float:
        """Count a round that committed so many tokens, and return what it took. rows: of its draft. asked_ms: what asking its
        masks took; None: it had none. read_ms: what its draft took to read those of the round before.
        """
        (draft_ms, target_ms), self._took = self._took, (0.0, 0.0)
        prices = self.prices(pending)
        forward = prices.steps(rows)
        draft = self._draft_cost * is_by_head
        if target_ms and self._times_rows:
            self._times.saw(self._told.at(prices.rows(rows)) - 1.0, target_ms)
        if target_ms and self._times_drafts:
            asking = forward * (asked_ms or 0.0) / target_ms
            draft = min(forward * draft_ms / target_ms + asking, LONGEST)
            if asked_ms is not None:
                reading = forward * read_ms / target_ms
                self._asking.saw(0, min(asking + reading, LONGEST_ASKING))
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
    bars, cuts = list(bars), _Cuts(tree, mask_worths, prices.row)
    while (first := cuts.at(bars[0])).rows > most:
        bars, cuts = [STEP * bars[0], *bars], _Cuts(tree, mask_worths, prices.row)
    found = [first, *map(cuts.at, bars[1:])]
    if mask_worths and mask_steps:
        found += map(_Cuts(tree, (), prices.row).at, bars)

    @cache
    def steps(rows: int, has_masks: bool) -> float:
        return prices.rate * (prices.steps(rows) + mask_steps * has_masks)

    fitting = (cut for cut in found if cut.rows <= most)
    return cuts.plan(max(fitting, key=lambda cut: cut.gain - steps(cut.rows, cut.rows > cut.nodes)))


class _Cut(NamedTuple):
    """A plan in numbers: the tree's first `nodes`, and masks in the other rows."""

    bar: float
    nodes: int
    rows: int
    gain: float


class _Cuts:
    """The plans for one bar after another, each at or below the last. row: what a row is worth in the next forward, where a
    token that the constraint forces needs one unless it is committed in this one.
    """

    def __init__(self, tree: ExpectedTree, mask_worths: Sequence[float], row: float) -> None:
        self._tree, self._row = tree, row
        # A node's masks are those before the first that is worth too little there.
        self._least = list(accumulate(mask_worths, min))
        self._gains = [0.0, *accumulate(mask_worths)]
        self._nodes, self._gain = 0, 0.0
        self._ends = [1.0 - tree.root_stops]  # of the root, and of the nodes

    def at(self, bar: float) -> _Cut:
        """The plan of what reaches the bar."""
        tree, ends, node = self._tree, self._ends, self._nodes
        while node < len(tree.worths) and tree.worths[node] >= bar:
            chance, parent = tree.chances[node], tree.parents[node]
            ends[parent + 1] -= chance
            ends.append(chance - tree.stops[node])
            is_forced = parent != ROOT and not tree.gains[parent]
            self._gain += tree.gains[node] + self._row * chance * is_forced
            node += 1
        rows, gain, self._nodes = node, self._gain, node
        if self._least:
            first = self._least[0]
            for end in ends:
                if end * first >= bar:
                    count = self._masks(end, bar)
                    rows += count
                    gain += end * self._gains[count]
        return _Cut(bar, node, rows, gain)

    def plan(self, cut: _Cut) -> Plan:
        """The plan that a cut stands for."""
        part = self._tree.first(cut.nodes)
        masks = [self._masks(end, cut.bar) if cut.rows > cut.nodes else 0 for end in part.ends()]
        return Plan(part, masks, cut.bar, cut.gain)

    def _masks(self, end: float, bar: float) -> int:
        """How many masks a node deserves at which the text leaves the tree with this probability."""
        return sum(end * worth >= bar for worth in self._least)
