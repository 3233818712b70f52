"""Domino (arXiv 2605.29707): a block head's chain, each guess corrected by the guesses before it."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from decoding.draft import Draft
from decoding.heads.domino_paths import PathMethod


class Domino(PathMethod):
    """The best token of every place after the best tokens before it."""

    kind: ClassVar[str] = "domino"

    def draft(self, states: Tensor, tokens: Sequence[int]) -> Draft:
        return self.grown(states, tokens, width=1, children=1, budget=len(states))
