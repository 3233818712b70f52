"""A Domino head on torch's operators: guesses that depend on the path before them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from decoding.heads.modules.domino import DominoHead
from decoding.heads.on_torch.block import TorchBlock
from decoding.heads.on_torch.tensor_context import TensorContext
from decoding.heads.on_torch.vocabulary import log_probabilities
from kernels.available import runs_kernels

if TYPE_CHECKING:
    from decoding.heads.on_torch.cuda_domino import DominoLoop


class TorchPaths(TorchBlock):
    """One text's Domino head. See `decoding.methods.drafting.head_runtimes.PathRuntime`."""

    _head: DominoHead

    @torch.inference_mode()
    def __init__(self, head: DominoHead, context: TensorContext, prompt: Sequence[int]) -> None:
        super().__init__(head, context, prompt)
        self._factor_rows = head.factor_rows(self._vocabulary.rows, self._vocabulary.ids)

    def chain(self, states: Tensor, tokens: Sequence[int]) -> list[int] | None:
        """The best chain on a GPU, where the host does not wait for every guess, and a constraint is ignored."""
        return self.looped(states, tokens) if runs_kernels(states.device) else None

    @torch.inference_mode()
    def looped(self, states: Tensor, tokens: Sequence[int]) -> list[int]:
        """`chain`, on any device."""
        return self._loop.chain(states, tokens[-1], len(tokens))

    @torch.inference_mode()
    def expansion(
        self, states: Tensor, tokens: Sequence[int], count: int
    ) -> Callable[[int, Sequence[int], Sequence[int]], tuple[Tensor, Tensor]]:
        """The first position gets no correction, because the block head knows the token before it."""
        head, vocabulary = self._head, self._vocabulary
        positions = torch.arange(len(tokens), len(tokens) + len(states), device=states.device)
        base = vocabulary.noisy(vocabulary.logits(states), positions)
        factor_rows = self._factor_rows * vocabulary.sharpness
        prefix = head.start(1)

        @torch.inference_mode()
        def expand(depth: int, guessed: Sequence[int], parents: Sequence[int]) -> tuple[Tensor, Tensor]:
            nonlocal prefix
            before = torch.tensor(guessed or tokens[-1:], device=states.device)
            prefix = head.read(prefix[list(parents)], self._embedding[before])
            scores = base[depth].expand(len(before), -1)
            if depth:
                scores = scores + head.factor(states[depth].expand(len(before), -1), prefix) @ factor_rows.T
            return vocabulary.best(log_probabilities(scores), count)

        return expand

    @cached_property
    def _loop(self) -> "DominoLoop":
        from decoding.heads.on_torch.cuda_domino import DominoLoop

        return DominoLoop(self._head, self._vocabulary, self._embedding)
