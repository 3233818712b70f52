"""JetSpec (arXiv 2606.18394): one pass of a causal block head, and a tree that is built best first within a budget."""

from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.heads.head import Head
from decoding.methods.blocks.block_method import BlockMethod
from decoding.methods.drafting.head_runtimes import States
from decoding.methods.drafting.trees import LEAST, Bounds, fanned_out, offered


class JetSpec(BlockMethod):
    """budget, least: see `Bounds`. width: children of a node that has any.

    A node gets all its children at once when it is the best node so far, as in the released tree builder. head, block_size:
    see `BlockMethod`; a causal head may guess beyond the block size that it was trained on.
    """

    kind: ClassVar[str] = "jetspec"

    def __init__(
        self, head: Head | str = "auto", block_size: int = 0, budget: int = 24, width: int = 3, least: float = LEAST
    ) -> None:
        super().__init__(head, block_size)
        if width < 1:
            raise ValueError(f"width must be 1 or more, not {width}")
        self._bounds, self._width = Bounds(budget, least), width

    def draft(self, states: States, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        levels = self.levels(states, tokens, offered(self._width, cursor))
        return fanned_out(levels, self._width, self._bounds, cursor)
