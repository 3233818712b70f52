"""JetSpec (arXiv 2606.18394): one pass of a causal block head, and a tree that is grown best first within a budget."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from decoding.draft import Draft
from decoding.heads.block_method import BlockMethod
from decoding.heads.head import Head
from decoding.trees import fanned_out


class JetSpec(BlockMethod):
    """budget: nodes of the tree, the root not counted. width: children of a node that has any.

    All children come at once when their parent is the best node so far, as in the released tree builder. head, block_size:
    see `BlockMethod`; a causal head may guess further than the block that it was trained on.
    """

    kind: ClassVar[str] = "jetspec"

    def __init__(self, head: Head | str = "auto", block_size: int = 0, budget: int = 24, width: int = 3) -> None:
        super().__init__(head, block_size)
        if budget < 1 or width < 1:
            raise ValueError(f"budget and width must be 1 or more, not {budget} and {width}")
        self._budget, self._width = budget, width

    def draft(self, states: Tensor, tokens: Sequence[int]) -> Draft:
        levels = self._vocabulary.levels(self.marginals(states, tokens), self._width)
        return fanned_out(levels, self._width, self._budget)
