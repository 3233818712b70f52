"""A Domino head's chain on a GPU: `kernels.domino`'s loop over one draft vocabulary, as one CUDA graph."""

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from decoding.heads.modules.domino import DominoHead
from decoding.heads.on_torch.vocabulary import DraftVocabulary
from kernels.domino import Correction, correct_chain
from kernels.graph import Graph


class DominoLoop:
    """The loop for one prompt's vocabulary, with one graph per depth. It stores three encoder widths per token."""

    def __init__(self, head: DominoHead, vocabulary: DraftVocabulary, embedding: Tensor) -> None:
        hidden = head.config.hidden
        mixed = cast(nn.Linear, head.embed_proj[0]).weight
        inputs, recurrent = head.prefix_gru.all_weights[0]
        self._head, self._embedding, self._vocabulary = head, embedding, vocabulary
        self._from_state = mixed[:, :hidden]
        self._correction = Correction(
            embedding[vocabulary.ids] @ inputs.T,
            torch.cat([mixed[:, hidden:], recurrent]),
            head.factor_rows(vocabulary.rows, vocabulary.ids).contiguous(),
        )
        self._graphs: dict[int, tuple[tuple[Tensor, Tensor, Tensor], Graph[Tensor]]] = {}  # by depth

    def chain(self, states: Tensor, last: int, position: int) -> list[int]:
        """The best tokens from `position` on, after the token `last`; states [depth, hidden]: those of the block."""
        positions = torch.arange(position, position + len(states), device=states.device)
        vocabulary = self._vocabulary
        base = vocabulary.noisy(vocabulary.logits(states), positions) / vocabulary.sharpness
        start = self._head.read(self._head.start(1), self._embedding[[last]])[0]
        graph = self._captured(base, states @ self._from_state.T, start)
        chosen: list[int] = vocabulary.ids[graph()].tolist()
        return chosen

    def _captured(self, base: Tensor, places: Tensor, start: Tensor) -> Graph[Tensor]:
        """The graph for a chain of this length, with its buffers filled."""
        if len(base) not in self._graphs:
            buffers = base.clone(), places.clone(), start.clone()
            run = partial(correct_chain, *buffers, self._correction)
            self._graphs[len(base)] = buffers, Graph(run, base.device)
        buffers, graph = self._graphs[len(base)]
        for buffer, given in zip(buffers, (base, places, start), strict=True):
            buffer.copy_(given)
        return graph
