"""Guesses of a Domino head that depend on the path before them, as `domino` and `path_tree` use them."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from decoding.engine.constraint_cursor import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.method import Context
from decoding.engine.target import Array
from decoding.heads.modules.block import BlockHead
from decoding.heads.modules.domino import DominoHead
from decoding.methods.blocks.block_method import BlockMethod
from decoding.methods.drafting.draft_vocabulary import DraftVocabulary, log_probabilities
from decoding.methods.drafting.trees import Bounds, Expand, Frontier, beam, offered


class PathMethod(BlockMethod):
    """A block method whose guesses are corrected along every path."""

    head_type: ClassVar[type[BlockHead]] = DominoHead
    _head: DominoHead

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        super().begin(prompt, hidden, context)
        self._factor_rows = self._head.factor_rows(self._vocabulary.rows, self._vocabulary.ids)

    def grown(
        self,
        states: Tensor,
        tokens: Sequence[int],
        cursor: ConstraintCursor | None,
        width: int,
        children: int,
        bounds: Bounds,
    ) -> Draft:
        """The tree of a beam search of this width, with `children` per node, from the tokens that `cursor` allows."""
        asked = offered(children, cursor)
        expand = expansion(
            self._head, self._vocabulary, self._factor_rows, states, self._embedding, tokens, children=asked
        )
        return beam(expand, width, len(states), bounds, children, cursor)


def expansion(
    head: DominoHead,
    vocabulary: DraftVocabulary,
    factor_rows: Tensor,
    states: Tensor,
    embedding: Tensor,
    tokens: Sequence[int],
    *,
    children: int,
) -> Expand:
    """The function from which `trees.beam` gets the best `children` of a frontier's nodes.

    factor_rows: the correction's right factor for the vocabulary. states [depth, hidden]: of the block after `tokens`. Its
    first position gets no correction, because the block head knows the token before it.
    """
    positions = torch.arange(len(tokens), len(tokens) + len(states), device=states.device)
    base = vocabulary.noisy(vocabulary.logits(states), positions)
    factor_rows = factor_rows * vocabulary.sharpness
    prefix = head.start(1)

    def expand(frontier: Frontier) -> tuple[Tensor, Tensor]:
        nonlocal prefix
        depth = frontier.depth
        before = torch.tensor(frontier.tokens or tokens[-1:], device=states.device)
        prefix = head.read(prefix[list(frontier.rows)], embedding[before])
        scores = base[depth].expand(len(before), -1)
        if depth:
            scores = scores + head.factor(states[depth].expand(len(before), -1), prefix) @ factor_rows.T
        return vocabulary.best(log_probabilities(scores), children)

    return expand
