"""Token trees from a drafter's guesses, as pure functions: best-first, fanned out, beam.

Scores are log-probabilities, so a path's score is a sum that never grows with its depth. Every builder returns a `Draft`
within `Bounds`. `cursor` is the constraint's at the root: the tree is built from tokens that it allows.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice
from math import exp, inf, log
from typing import Any, Protocol

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import DeviceFloat, on_device

Tail = tuple[int, int]
"""The last two tokens before a guess."""


@dataclass(frozen=True, slots=True)
class Level:
    """Guesses for one depth, best first."""

    tokens: Sequence[int]
    scores: Sequence[float]  # log-probabilities, none above 0, descending


class Table(Protocol):
    """An array or a tensor [rows, columns]."""

    def tolist(self) -> list[Any]: ...


Guesses = tuple[Table, Table]
"""Tokens and log-probabilities [rows, count], best first: a row for each depth, or for each node."""


def levels(guesses: Guesses) -> list[Level]:
    """Guesses as one level of a tree per row."""
    tokens, scores = guesses
    return [Level(*row) for row in zip(tokens.tolist(), scores.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a tree may cost.

    budget: nodes, the root not counted. least: the lowest probability of a path that is worth its rows. On a CPU, where every
    row costs time, that is about a row's share of a forward; 0 if only the budget counts. Raises ValueError.
    """

    budget: int
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.budget < 1 or not 0.0 <= self.least < 1.0:
            raise ValueError(
                f"budget must be 1 or more and least from 0 to below 1, not {self.budget} and {self.least}"
            )

    def on(self, runtime: str) -> "Bounds":
        """These bounds where options had defaults by device."""
        return Bounds(on_device(self.budget, runtime), on_device(self.least, runtime))

    def above_floor(
        self, tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float]
    ) -> tuple[list[int], list[int], list[float]]:
        """The nodes of a tree that are probable enough; children never score above their parents."""
        kept = [node for node, score in enumerate(scores) if score >= self.floor]
        places = {node: place for place, node in enumerate(kept)} | {ROOT: ROOT}
        return (
            [tokens[node] for node in kept],
            [places[parents[node]] for node in kept],
            [scores[node] for node in kept],
        )

    @property
    def floor(self) -> float:
        """The lowest score of a path."""
        return log(self.least) if self.least else -inf


def tail_of(tokens: Sequence[int]) -> Tail:
    """The last two of at least one token; the first counts as its own predecessor."""
    return tokens[max(len(tokens) - 2, 0)], tokens[-1]


OFFERED = 16
"""Guesses per position that a constraint may choose from, if the builder wants fewer: the best may be forbidden."""

LEAST = DeviceFloat(0.05, gpu=0.0)
"""The default of `Bounds.least` for drafters whose guesses have probabilities: on a GPU the budget alone counts."""


def offered(wanted: int, cursor: ConstraintCursor | None) -> int:
    """How many guesses per position to give to a builder that takes `wanted` of them."""
    return wanted if cursor is None else max(wanted, OFFERED)


def admitted(level: Level, cursor: ConstraintCursor | None, floor: float = -inf) -> Iterator[tuple[int, float]]:
    """The guesses of a level that `cursor` allows, best first: tokens and log-probabilities, none below `floor`.

    The probability of forbidden guesses is shared among the others; a forced token is certain. The constraint is asked lazily.
    """
    if cursor is not None and cursor.run:
        yield cursor.run[0], 0.0
        return
    left, better = 1.0, 0.0
    for token, score in zip(level.tokens, level.scores, strict=True):
        score_here = min(score - log(left), better)
        if score_here < floor:
            return
        if cursor is None or cursor.admits(token):
            better = score_here
            yield token, score_here
        else:
            left = max(left - exp(score), 1e-6)


def chain(levels: Sequence[Level], cursor: ConstraintCursor | None = None) -> Draft:
    """A chain of the best allowed guess of every level."""
    return fanned_out(levels, 1, Bounds(len(levels)), cursor) if levels else Draft()


def best_first(levels: Sequence[Level], bounds: Bounds, cursor: ConstraintCursor | None = None) -> Draft:
    """The most probable prefixes under the product of the levels' probabilities (DDTree, arXiv 2604.12989)."""
    return best_paths(lambda depth, tail: levels[depth], len(levels), (0, 0), bounds, cursor)


def best_paths(
    level: Callable[[int, Tail], Level], count: int, root: Tail, bounds: Bounds, cursor: ConstraintCursor | None = None
) -> Draft:
    """`best_first` where guesses may depend on the tokens before them. level: depth below `count` and two tokens -> guesses.

    root: the two tokens before the first depth. A popped node offers its next sibling and its first child, so the heap never
    holds more than twice the budget.
    """
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    heap: list[tuple[float, int, int, int, _Family]] = []  # cost, depth, number of the offer, token, its family
    offers = numbers()

    def offer(family: _Family) -> None:
        for token, score in islice(family.guesses, 1):
            heapq.heappush(heap, (family.cost - score, family.depth, next(offers), token, family))

    def open_family(parent: int, tail: Tail, depth: int, cost: float, cursor: ConstraintCursor | None) -> None:
        if depth < count:
            guesses = admitted(level(depth, tail), cursor, bounds.floor + cost)
            offer(_Family(parent, tail[-1], depth, cost, cursor, guesses))

    open_family(ROOT, root, 0, 0.0, cursor)
    while heap and len(tokens) < bounds.budget:
        cost, depth, _, token, family = heapq.heappop(heap)
        offer(family)
        after = family.cursor and family.cursor.after(token)
        open_family(len(tokens), (family.last, token), depth + 1, cost, after)
        tokens.append(token)
        parents.append(family.parent)
        chances.append(-cost)
    return Draft(tuple(tokens), tuple(parents), chances=tuple(chances))


@dataclass(frozen=True, slots=True)
class _Family:
    """The children of a node, computed lazily. last, cost and cursor: of the node, its token first; depth: of the children."""

    parent: int
    last: int
    depth: int
    cost: float
    cursor: ConstraintCursor | None
    guesses: Iterator[tuple[int, float]]


def fanned_out(levels: Sequence[Level], width: int, bounds: Bounds, cursor: ConstraintCursor | None = None) -> Draft:
    """The tree of JetSpec (arXiv 2606.18394, its builder `accum_logp`): the best node gets all its `width` children at once."""
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    heap = [(0.0, ROOT, 0, cursor)]  # cost, node, its children's depth, the cursor above it
    while heap and len(tokens) < bounds.budget:
        cost, parent, depth, cursor = heapq.heappop(heap)
        if depth == len(levels):
            continue
        if parent != ROOT and cursor is not None:
            cursor = cursor.after(tokens[parent])
        children = admitted(levels[depth], cursor, bounds.floor + cost)
        for token, score in islice(children, min(width, bounds.budget - len(tokens))):
            heapq.heappush(heap, (cost - score, len(tokens), depth + 1, cursor))
            tokens.append(token)
            parents.append(parent)
            chances.append(score - cost)
    return Draft(tuple(tokens), tuple(parents), chances=tuple(chances))


@dataclass(frozen=True, slots=True)
class Frontier:
    """The nodes of one depth that are expanded next."""

    depth: int  # 0: the root alone
    tokens: Sequence[int]  # of the nodes; the root's is not known here and left out
    rows: Sequence[int]  # each node's parent, as its index in the previous frontier


Expand = Callable[[Frontier], Guesses]
"""The best children of a frontier's nodes, a row for each."""


def beam(
    expand: Expand,
    width: int,
    depth: int,
    bounds: Bounds,
    children: int | None = None,
    cursor: ConstraintCursor | None = None,
) -> Draft:
    """The best nodes of a beam search (EAGLE-2's dynamic tree, arXiv 2406.16858).

    Every level's best `width` nodes are expanded, to at most `depth`; all children are candidates. A level that can no
    longer enter the tree is not computed. children: the most that a node gets, of those that `expand` gives and the
    constraint allows; None: all.
    """
    search = BeamSearch(width, depth, bounds, children, cursor)
    frontier = Frontier(0, (), (0,)) if depth else None
    while frontier is not None:
        frontier = search.grow(expand(frontier))
    return search.draft()


class BeamSearch:
    """`beam`, level by level. depth: at least 1."""

    def __init__(
        self, width: int, depth: int, bounds: Bounds, children: int | None, cursor: ConstraintCursor | None
    ) -> None:
        self._width, self._depth, self._children, self._budget = width, depth, children, bounds.budget
        self._tree, self._nodes, self._cursors, self._grown = _Candidates(bounds), [ROOT], [cursor], 0

    def grow(self, guesses: Guesses) -> Frontier | None:
        """Add the children of the nodes that are expanded, at first the root; returns those to be expanded next, if any."""
        tree, first = self._tree, len(self._tree.tokens)
        families = enumerate(zip(self._nodes, levels(guesses), self._cursors, strict=True))
        came_from = [row for row, family in families for _ in range(tree.add(*family, self._children))]
        self._nodes, self._grown = tree.worth_expanding(first, self._width), self._grown + 1
        rows = tuple(came_from[node - first] for node in self._nodes)
        frontier = Frontier(self._grown, tuple(tree.tokens[node] for node in self._nodes), rows)
        above = (self._cursors[row] for row in rows)
        self._cursors = [each and each.after(token) for each, token in zip(above, frontier.tokens, strict=True)]
        return frontier if self._nodes and self._grown < self._depth else None

    def draft(self) -> Draft:
        return budgeted(self._tree.tokens, self._tree.parents, self._tree.scores, self._budget)


class _Candidates:
    """The nodes of a beam search so far."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []

    def add(self, node: int, level: Level, cursor: ConstraintCursor | None, most: int | None) -> int:
        """Add a node's children; returns how many they are."""
        above, before = self.scores[node] if node != ROOT else 0.0, len(self.tokens)
        for token, score in islice(admitted(level, cursor, self._bounds.floor - above), most):
            self.tokens.append(token)
            self.parents.append(node)
            self.scores.append(above + score)
        return len(self.tokens) - before

    def worth_expanding(self, first: int, width: int) -> list[int]:
        """The best `width` nodes from `first` on, without those whose children cannot enter the tree."""
        budget = self._bounds.budget
        bar = heapq.nlargest(budget, self.scores)[-1] if len(self.scores) >= budget else -inf
        level = (node for node in range(first, len(self.tokens)) if self.scores[node] > bar)
        return heapq.nlargest(width, level, key=self.scores.__getitem__)


def budgeted(tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float], budget: int) -> Draft:
    """The `budget` best nodes of a tree whose nodes are in topological order and never score above their parents."""
    best = heapq.nsmallest(budget, range(len(tokens)), key=lambda node: (-scores[node], node))
    order = sorted(best)
    kept = {node: index for index, node in enumerate(order)} | {ROOT: ROOT}
    above = tuple(kept[parents[node]] for node in order)
    return Draft(tuple(tokens[node] for node in order), above, chances=tuple(scores[node] for node in order))
