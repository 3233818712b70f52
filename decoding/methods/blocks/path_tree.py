"""Our own method: a tree in which every path has its own guesses.

DDTree and JetSpec hang the same guesses under every node of a depth, because one pass of the head gives one distribution per
depth. Here Domino's causal correction, a GRU and a low-rank factor, is applied along every branch, so that what follows
depends on the branch; the block head still runs once.
"""

from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.heads.head import Head
from decoding.methods.blocks.domino_paths import PathMethod
from decoding.methods.drafting.head_runtimes import States
from decoding.methods.drafting.trees import LEAST, Bounds


class PathTree(PathMethod):
    """budget, least: see `Bounds`. width: nodes expanded per depth. children: guesses below each.

    head, block_size: see `BlockMethod`. Any head of Domino's kind works.
    """

    kind: ClassVar[str] = "path_tree"

    def __init__(
        self,
        head: Head | str = "auto",
        block_size: int = 0,
        budget: int = 24,
        width: int = 6,
        children: int = 4,
        least: float = LEAST,
    ) -> None:
        super().__init__(head, block_size)
        if min(width, children) < 1:
            raise ValueError(f"width and children must be 1 or more, not {width} and {children}")
        self._bounds, self._width, self._children = Bounds(budget, least), width, children

    def draft(self, states: States, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        return self.grown(states, tokens, cursor, self._width, self._children, self._bounds)
