"""DDTree (arXiv 2604.12989): the most probable prefixes under the marginals of DFlash's head, best first."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from decoding.draft import Draft
from decoding.heads.block_method import BlockMethod
from decoding.heads.head import Head
from decoding.trees import best_first


class DDTree(BlockMethod):
    """budget: nodes of the tree, the root not counted. head, block_size: see `BlockMethod`."""

    kind: ClassVar[str] = "dflash"

    def __init__(self, head: Head | str = "auto", block_size: int = 0, budget: int = 24) -> None:
        super().__init__(head, block_size)
        if budget < 1:
            raise ValueError(f"budget must be 1 or more, not {budget}")
        self._budget = budget

    def draft(self, states: Tensor, tokens: Sequence[int]) -> Draft:
        levels = self._vocabulary.levels(self.marginals(states, tokens), self._budget)
        return best_first(levels, self._budget)
