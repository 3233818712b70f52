"""Domino (arXiv 2605.29707): a block head's chain, each guess corrected by the guesses before it."""

from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.methods.blocks.domino_paths import PathMethod
from decoding.methods.drafting.head_runtimes import States
from decoding.methods.drafting.trees import Bounds


class Domino(PathMethod):
    """The best token of every position, given the best tokens before it."""

    kind: ClassVar[str] = "domino"

    def draft(self, states: States, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        if (chain := self._drafter.chain(states, tokens, cursor)) is not None:
            return Draft.chain(chain)
        return self.grown(states, tokens, cursor, width=1, children=1, bounds=Bounds(len(states)))
