"""DFlash (arXiv 2602.06036): one pass of a bidirectional block head guesses a chain."""

from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.methods.blocks.block_method import BlockMethod
from decoding.methods.drafting.head_runtimes import States
from decoding.methods.drafting.trees import chain, offered


class DFlash(BlockMethod):
    """The best token of every position."""

    kind: ClassVar[str] = "dflash"

    def draft(self, states: States, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        return chain(self.levels(states, tokens, offered(1, cursor)), cursor)
