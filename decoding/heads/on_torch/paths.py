"""A Domino head on torch's operators: guesses that depend on the path before them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decoding.engine.constraint import ConstraintCursor
from decoding.heads.modules.domino import DominoHead
from decoding.heads.on_torch.block import TorchBlock
from decoding.heads.on_torch.tensor_context import TensorContext
from decoding.heads.on_torch.vocabulary import log_probabilities
from kernels.available import runs_kernels
from kernels.transfer import sent


class TorchPaths(TorchBlock):
    """One text's Domino head. See `decoding.methods.drafting.head_runtimes.PathRuntime`."""

    _head: DominoHead

    @torch.inference_mode()
    def __init__(self, head: DominoHead, context: TensorContext, prompt: Sequence[int]) -> None:
        super().__init__(head, context, prompt)
        self._target = context
        self._factor_rows = head.factor_rows(self._vocabulary.rows, self._vocabulary.ids)

    def chain(self, states: Tensor, tokens: Sequence[int], cursor: ConstraintCursor | None) -> list[int] | None:
        """The best chain on a GPU, where the host does not wait for every guess."""
        return self.looped(states, tokens, cursor) if runs_kernels(states.device) else None

    @torch.inference_mode()
    def looped(self, states: Tensor, tokens: Sequence[int], cursor: ConstraintCursor | None = None) -> list[int]:
        """`chain`, on any device."""
        from decoding.heads.on_torch.cuda_domino import domino_loop

        return domino_loop(self._head, self._target).chain(self._vocabulary, states, tokens, cursor)

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
            before = sent(guessed or tokens[-1:], states.device)
            prefix = head.read(prefix[sent(parents, states.device)], self._embedding[before])
            scores = base[depth].expand(len(before), -1)
            if depth:
                scores = scores + head.factor(states[depth].expand(len(before), -1), prefix) @ factor_rows.T
            return vocabulary.best(log_probabilities(scores), count)

        return expand
