"""A draft of the guesses that are worth their rows, whatever proposed them.

Every proposer gives a guess a probability; a node's is the product along its path. In the time of one plain step the target
commits one token, and with drafts several; a row pays if the probability that its token is committed exceeds what would be
committed in the row's time without it.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft

Continuations = Callable[[tuple[int, ...], ConstraintCursor | None, float], Mapping[int, float]]
"""(path so far, the constraint's cursor after it, least probability) -> guesses for the next token and their probabilities."""


@dataclass(slots=True)
class ExpectedTree:
    """Nodes in topological order, best first. `chances`: of each node to be committed; `ends`: that the text leaves the tree
    just after a node, by node, the root's under ROOT."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    ends: dict[int, float] = field(default_factory=lambda: {ROOT: 1.0})

    def add(self, parent: int, token: int, chance: float) -> int:
        """Add a node and return its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        self.ends[parent] -= chance
        node = len(self.tokens) - 1
        self.ends[node] = chance
        return node

    def with_masks(self, chain: Sequence[int], count: Callable[[float], int]) -> Draft:
        """The draft, with the first masks of a chain after every node, as many as `count` gives for its entry in `ends`.

        All nodes are scored, even where a constraint forbids them.
        """
        tokens, parents = list(self.tokens), list(self.parents)
        for node, end in self.ends.items():
            for place, mask in enumerate(chain[: count(end)]):
                parents.append(len(tokens) - 1 if place else node)
                tokens.append(mask)
        return Draft(tuple(tokens), tuple(parents), context=len(tokens), masks=tuple(chain))


def expected_tree(
    continuations: Continuations, least: float, budget: int, room: int, cursor: ConstraintCursor | None
) -> ExpectedTree:
    """The `budget` most probable prefixes of at most `room` tokens that are worth their rows.

    least: the lowest probability that is worth a row. `cursor` is the constraint's at the root; a token that it forces is
    certain, and forbidden ones are left to it.
    """
    tree, offers = ExpectedTree(), count()
    heap: list[tuple[float, int, int, tuple[int, ...], ConstraintCursor | None]] = []

    def offer(node: int, path: tuple[int, ...], chance: float, cursor: ConstraintCursor | None) -> None:
        if len(path) >= room:
            return
        guesses = {cursor.run[0]: 1.0} if cursor and cursor.run else continuations(path, cursor, least / chance)
        for token, share in guesses.items():
            if chance * share >= least:
                heapq.heappush(heap, (-chance * share, next(offers), node, (*path, token), cursor))

    offer(ROOT, (), 1.0, cursor)
    while heap and len(tree.tokens) < budget:
        negative, _, parent, path, above = heapq.heappop(heap)
        node = tree.add(parent, path[-1], -negative)
        offer(node, path, -negative, above and above.after(path[-1]))
    return tree
