"""DFlash (arXiv 2602.06036): one pass of a bidirectional block head guesses a chain."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from decoding.draft import Draft
from decoding.heads.block_method import BlockMethod


class DFlash(BlockMethod):
    """The best token of every place."""

    kind: ClassVar[str] = "dflash"

    def draft(self, states: Tensor, tokens: Sequence[int]) -> Draft:
        best, _ = self._vocabulary.best(self.marginals(states, tokens), 1)
        return Draft.chain(best[:, 0].tolist())
