"""DDTree (arXiv 2604.12989): the most probable prefixes under the marginals of DFlash's head, best first."""

from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.heads.head import Head
from decoding.methods.blocks.block_method import BlockMethod
from decoding.methods.drafting.head_runtimes import States
from decoding.methods.drafting.trees import LEAST, Bounds, best_first, offered


class DDTree(BlockMethod):
    """budget, least: see `Bounds`. head, block_size: see `BlockMethod`."""

    kind: ClassVar[str] = "dflash"

    def __init__(self, head: Head | str = "auto", block_size: int = 0, budget: int = 24, least: float = LEAST) -> None:
        super().__init__(head, block_size)
        self._bounds = Bounds(budget, least)

    def draft(self, states: States, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        return best_first(self.levels(states, tokens, offered(self._bounds.budget, cursor)), self._bounds, cursor)
