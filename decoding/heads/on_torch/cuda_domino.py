"""A Domino head's chain on a GPU: `kernels.domino`'s loop as one CUDA graph, for all texts that the head drafts for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoding.engine.constraint import ConstraintCursor
from decoding.heads.modules.domino import DominoHead
from decoding.heads.on_torch.tensor_context import TensorContext
from decoding.heads.on_torch.vocabulary import DraftVocabulary
from kernels.domino import Correction, correct_chain
from kernels.graph import Graph, RecentGraphs
from kernels.transfer import fetched, sent

_ROOM = 1024  # draft vocabularies are filled up to a multiple of it, so that most prompts use one graph
_MOST_GRAPHS = 8


@dataclass(frozen=True, slots=True)
class _Buffers:
    """What a captured loop reads; see `correct_chain`. The last `depth` tokens are room for forced ones, a place each."""

    base: Tensor
    ids: Tensor
    places: Tensor
    start: Tensor

    def fill(self, base: Tensor, ids: Tensor, places: Tensor, start: Tensor) -> None:
        self.base.fill_(float("-inf"))
        self.base[:, : len(ids)].copy_(base)
        self.ids[: len(ids)].copy_(ids)
        self.places.copy_(places)
        self.start.copy_(start)

    def restrict(self, place: int, cursor: ConstraintCursor) -> None:
        """Leave the guess at a place only tokens that the cursor allows, and at those after it the forced ones."""
        depth, size = self.base.shape
        for at, token in enumerate(cursor.run[: depth - place], place):
            self.base[at].fill_(float("-inf"))
            self.base[at, size - depth + at].fill_(float("inf"))
            self.ids[size - depth + at].fill_(token)
        if not cursor.run:
            allowed = sent(cursor.allowed().copy(), self.ids.device)  # the mask is shared
            self.base[place].masked_fill_(~allowed[self.ids], float("-inf"))


class DominoLoop:
    """A head's loop for one target, with tables of its whole vocabulary: three encoder widths and a rank per token.

    A graph serves all texts whose draft vocabularies are about as large.
    """

    def __init__(self, head: DominoHead, context: TensorContext) -> None:
        hidden, embedding = head.config.hidden, context.embedding
        mixed = cast(nn.Linear, head.embed_proj[0]).weight
        inputs, recurrent = head.prefix_gru.all_weights[0]
        self._head, self.embedding = head, embedding
        self._from_state = mixed[:, :hidden]
        everything = torch.arange(len(context.lm_head), device=embedding.device)
        self._correction = Correction(
            embedding @ inputs.T,
            torch.cat([mixed[:, hidden:], recurrent]),
            head.factor_rows(context.lm_head, everything).contiguous(),
        )
        self._graphs = RecentGraphs[tuple[_Buffers, Graph[Tensor]]](_MOST_GRAPHS)

    def chain(
        self, vocabulary: DraftVocabulary, states: Tensor, tokens: Sequence[int], cursor: ConstraintCursor | None
    ) -> list[int]:
        """The best tokens after `tokens` that `cursor` allows, each after those before it; states [depth, hidden].

        The loop runs freely and its chain is walked. From a guess that is forbidden on, the loop runs again: the host waits
        once, and once more for each such guess. The chain ends where the draft vocabulary has nothing that is allowed.
        """
        buffers, graph = self._filled(vocabulary, states, tokens)
        if cursor is not None and cursor.run:
            buffers.restrict(0, cursor)
        guesses: list[int] = fetched(graph())
        for place in range(len(guesses) if cursor is not None else 0):
            assert cursor is not None
            if cursor.ended:
                return guesses[:place]
            if not cursor.admits(guesses[place]):
                buffers.restrict(place, cursor)
                guesses = fetched(graph())
            if not cursor.admits(guesses[place]):
                return guesses[:place]
            cursor = cursor.after(guesses[place])
        return guesses

    def _filled(
        self, vocabulary: DraftVocabulary, states: Tensor, tokens: Sequence[int]
    ) -> tuple[_Buffers, Graph[Tensor]]:
        """The graph for a chain of this length and vocabulary, with its buffers filled."""
        positions = torch.arange(len(tokens), len(tokens) + len(states), device=states.device)
        base = vocabulary.noisy(vocabulary.logits(states), positions) / vocabulary.sharpness
        last = functional.embedding(sent(tokens[-1:], states.device), self.embedding)
        depth, size = len(states), -(-(len(vocabulary.ids) + len(states)) // _ROOM) * _ROOM
        buffers, graph = self._graphs.get((depth, size), partial(self._capture, depth, size))
        start = self._head.read(self._head.start(1), last)[0]
        buffers.fill(base, vocabulary.ids, states @ self._from_state.T, start)
        return buffers, graph

    def _capture(self, depth: int, size: int) -> tuple[_Buffers, Graph[Tensor]]:
        like, correction = self._from_state, self._correction
        buffers = _Buffers(
            torch.zeros(depth, size, dtype=torch.float32, device=like.device),
            torch.zeros(size, dtype=torch.long, device=like.device),
            like.new_zeros(depth, correction.rank),
            like.new_zeros(self._head.size("gru")),
        )
        run = partial(correct_chain, buffers.base, buffers.ids, buffers.places, buffers.start, correction)
        return buffers, Graph(run, like.device)


_LOOPS: WeakKeyDictionary[DominoHead, DominoLoop] = WeakKeyDictionary()


def domino_loop(head: DominoHead, context: TensorContext) -> DominoLoop:
    """The head's loop for this target; one for all its texts."""
    loop = _LOOPS.get(head)
    if loop is None or loop.embedding is not context.embedding:
        loop = _LOOPS[head] = DominoLoop(head, context)
    return loop
