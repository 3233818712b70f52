"""A draft of the guesses that are worth their rows, whatever proposed them.

Every proposer gives a guess a probability; a node's is the product along its path. In the time of one plain step the target
commits one token, and with drafts several; rows pay if what they are expected to commit exceeds what would be committed in
their time without them. A token that the constraint forces is committed anyway: its row only leads to the token after it. So a
guess before such tokens must pay for their rows too, but only as far as it is wrong: else the next forward would need them.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Any

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft

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
