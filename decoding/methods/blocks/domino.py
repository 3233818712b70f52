"""Domino (arXiv 2605.29707): a block head's chain, each guess corrected by the guesses before it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from decoding.engine.constraint_cursor import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.method import Context
from decoding.engine.target import Array
from decoding.methods.blocks.domino_paths import PathMethod
from decoding.methods.drafting.trees import Bounds
from kernels.available import runs_kernels

if TYPE_CHECKING:
    from decoding.methods.blocks.cuda_domino import DominoLoop


class Domino(PathMethod):
    """The best token of every position, given the best tokens before it."""

    kind: ClassVar[str] = "domino"
    _loop: "DominoLoop | None"

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        super().begin(prompt, hidden, context)
        self._loop = None

    def draft(self, states: Tensor, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        if runs_kernels(states.device):
            return Draft.chain(self.looped(states, tokens))
        return self.grown(states, tokens, cursor, width=1, children=1, bounds=Bounds(len(states)))

    def looped(self, states: Tensor, tokens: Sequence[int]) -> list[int]:
        """The same chain, but the host does not wait for every guess, and a constraint is ignored."""
        from decoding.methods.blocks.cuda_domino import DominoLoop

        if self._loop is None:
            self._loop = DominoLoop(self._head, self._vocabulary, self._embedding)
        return self._loop.chain(states, tokens[-1], len(tokens))
