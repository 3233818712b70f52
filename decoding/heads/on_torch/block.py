"""Block heads on torch's operators, and Domino's guesses along paths, on a GPU as one CUDA graph for all texts of a head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT
from decoding.engine.target import Array
from decoding.heads.modules.block import BlockHead, DominoHead, TextBlock
from decoding.heads.modules.layer import KeysValues
from decoding.heads.on_torch.context import (
    DraftVocabulary,
    Ranking,
    TableGraphs,
    TensorContext,
    best_of,
    log_probabilities,
    table_graphs,
)
from decoding.targets.llama_model import TensorTable
from kernels.available import runs_kernels
from kernels.gpu.ragged import Graph, RecentGraphs, SequenceRows, fetched, sent

if TYPE_CHECKING:
    from kernels.gpu.domino import Correction

Candidates = tuple[list[int], list[int], list[float]]
"""Nodes of a beam search in topological order: tokens, parents, and log-probabilities of their paths."""


class BlockContext:
    """Keys and values of one sequence's committed tokens in a block head; each token is appended once."""

    def __init__(self, head: BlockHead) -> None:
        self.head, weight = head, head.fc.weight
        self._shape = (head.size("layers"), 2, head.size("kv_heads"))
        planes = self._shape[0] * self._shape[1] * self._shape[2]
        self._rows = TensorTable(planes, (head.size("head_dim"),), weight.dtype, weight.device)
        self.count = 0  # tokens
        self.last = weight.new_zeros(1, len(head.config.taps), head.config.hidden)  # the newest token's tapped states

    def append(self, hidden: Tensor) -> None:
        """The next tokens' tapped states [new, taps, hidden]."""
        append_together([self], [hidden])

    def layers(self) -> list[KeysValues]:
        """Views of the keys and of the values of each layer, [kv_heads, tokens, head_dim] each."""
        return [(layer[0], layer[1]) for layer in self._table()[:, :, :, : self.count]]

    def positions(self, new: int) -> Tensor:
        """[new] of the next tokens."""
        return torch.arange(self.count, self.count + new, device=self.last.device)

    @property
    def table(self) -> Tensor:
        """[layers * 2 * kv_heads, capacity, head_dim]."""
        return self._rows.data

    def reserve(self, end: int) -> None:
        """Room for so many rows."""
        self._rows.reserve(end, self.count)

    def keep(self, hidden: Tensor, layers: Sequence[KeysValues]) -> None:
        """What was computed for the next tokens."""
        end = self.count + len(hidden)
        self.reserve(end)
        table = self._table()
        for index, pair in enumerate(layers):
            for part, values in enumerate(pair):
                table[index, part, :, self.count : end] = values
        self.count, self.last = end, hidden[-1:]

    def _table(self) -> Tensor:
        """[layers, 2, kv_heads, capacity, head_dim]."""
        return self._rows.data.view(*self._shape, *self._rows.data.shape[1:])


def append_together(contexts: Sequence[BlockContext], new: Sequence[Tensor]) -> None:
    """Append the next tokens' tapped states [new, taps, hidden] of each context, all of one head."""
    both = [(context, hidden) for context, hidden in zip(contexts, new, strict=True) if len(hidden)]
    if not both:
        return
    sizes, head = [len(hidden) for _, hidden in both], both[0][0].head
    positions = torch.cat([context.positions(len(hidden)) for context, hidden in both])
    layers = head.context(torch.cat([hidden for _, hidden in both]), positions)
    parts = [
        list(zip(torch.split(keys, sizes, 1), torch.split(values, sizes, 1), strict=True)) for keys, values in layers
    ]
    for (context, hidden), *own in zip(both, *parts, strict=True):
        context.keep(hidden, own)


_NEWEST = 32  # committed tokens that a captured pass takes in with a block; those before them are read beforehand
_MOST_GRAPHS = 8  # of a head


def _captured(graphs: TableGraphs, blocks: "Sequence[tuple[TorchBlock, Sequence[int], int]]") -> list[Tensor] | None:
    """See `TorchBlock.together`: the newest tokens of all texts and their blocks in one graph; None where a text has none."""
    texts, head = [text._context for text, _, _ in blocks], blocks[0][0].head
    new = _newest([text for text, _, _ in blocks])
    if not all(map(len, new)):
        append_together(texts, new)
        return None
    rows = [
        _rows_of(text, len(hidden), known, masks, len(graphs.embedding))
        for text, hidden, (_, known, masks) in zip(texts, new, blocks, strict=True)
    ]
    states = graphs.states(rows, new)
    for text, hidden in zip(texts, new, strict=True):
        text.count, text.last = text.count + len(hidden), hidden[-1:]
    parts = [part[len(hidden) :] for hidden, part in zip(new, states, strict=True)]
    return head.guesses(parts, [len(known) - 1 for _, known, _ in blocks], torch.cat([text.last for text in texts]))


def _newest(texts: "Sequence[TorchBlock]") -> list[Tensor]:
    """The newest tapped states of each text, few enough for a graph; those before them become context."""
    taken = [text._taken() for text in texts]
    append_together([text._context for text in texts], [states[:-_NEWEST] for states in taken])
    return [states[-_NEWEST:] for states in taken]


def _rows_of(text: BlockContext, new: int, known: Sequence[int], masks: int, vocab: int) -> SequenceRows:
    """A text's part in a captured pass, with room for it in the text's table."""
    tokens = [*[-1] * new, *known, *[vocab] * masks]
    end = text.count + len(tokens)
    text.reserve(end)
    return SequenceRows(text.table, text.count, tokens, range(text.count, end), mutual=not text.head.causal)


class TorchBlock:
    """One text's block head. See `decoding.methods.head_runtimes.BlockRuntime`."""

    def __init__(self, head: BlockHead, context: TensorContext, prompt: Sequence[int]) -> None:
        self.head = self._head = head
        self._embedding = context.embedding
        self._vocabulary = DraftVocabulary.for_prompt(context, head.config.frequent, prompt)
        self._context = BlockContext(head)
        self._graphs = table_graphs(head, context.embedding) if runs_kernels(context.embedding.device) else None
        self._unread: list[Tensor] = []  # the newest states, which the next pass takes in
        self.count = 0

    def append(self, hidden: Array) -> None:
        self._unread.append(torch.as_tensor(hidden))
        self.count += len(hidden)

    def states(self, known: Sequence[int], masks: int) -> Tensor:
        return self.together([(self, known, masks)])[0]

    @torch.inference_mode()
    def together(self, blocks: "Sequence[tuple[TorchBlock, Sequence[int], int]]") -> list[Tensor]:
        if self._graphs is not None and (found := _captured(self._graphs, blocks)) is not None:
            return found
        texts = [text for text, _, _ in blocks]
        append_together([text._context for text in texts], [text._taken() for text in texts])
        tokens = sent([token for _, known, _ in blocks for token in known], self._embedding.device)
        each = zip(texts, torch.split(tokens, [len(known) for _, known, _ in blocks]), blocks, strict=True)
        asked = [
            TextBlock(known, masks, text._context.layers(), text._context.last) for text, known, (_, _, masks) in each
        ]
        return self._head.of_texts(asked, self._embedding)

    @torch.inference_mode()
    def best_of(self, asked: "Sequence[tuple[TorchBlock, Tensor, int, int]]") -> list[tuple[Tensor, Tensor]]:
        return best_of(
            [
                Ranking(text._vocabulary, states, range(first, first + len(states)), count)
                for text, states, first, count in asked
            ]
        )

    def _taken(self) -> Tensor:
        """The newest states [new, taps, hidden], which are no longer unread."""
        taken = torch.cat([self._context.last[:0], *self._unread])
        self._unread = []
        return taken


class TorchPaths(TorchBlock):
    """One text's Domino head. See `decoding.methods.head_runtimes.PathRuntime`."""

    _head: DominoHead

    @torch.inference_mode()
    def __init__(self, head: DominoHead, context: TensorContext, prompt: Sequence[int]) -> None:
        super().__init__(head, context, prompt)
        self._target = context
        vocabulary = self._vocabulary
        if vocabulary.is_whole:
            self._factor_rows = domino_loop(head, context).outputs
        else:
            self._factor_rows = head.factor_rows(vocabulary.rows, vocabulary.ids)

    def chain(self, states: Tensor, tokens: Sequence[int], cursor: ConstraintCursor | None) -> list[int] | None:
        """The best chain on a GPU, where the host does not wait for every guess."""
        return self.looped(states, tokens, cursor) if runs_kernels(states.device) else None

    @torch.inference_mode()
    def looped(self, states: Tensor, tokens: Sequence[int], cursor: ConstraintCursor | None = None) -> list[int]:
        """`chain`, on any device."""

        return domino_loop(self._head, self._target).chain(self._vocabulary, states, tokens, cursor)

    def candidates(self, states: Tensor, tokens: Sequence[int], width: int, children: int) -> Candidates | None:
        """All of a beam search on a GPU, where the host does not wait for every level."""
        return self.searched(states, tokens, width, children) if runs_kernels(states.device) else None

    @torch.inference_mode()
    def searched(self, states: Tensor, tokens: Sequence[int], width: int, children: int) -> Candidates:
        """`candidates`, on any device."""
        loop = domino_loop(self._head, self._target)
        return loop.search(self._vocabulary, states, tokens, width, children)

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


_ROOM = 1024  # draft vocabularies are filled up to a multiple of it, so that most prompts use one graph


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


_Search = tuple[int, int, float]  # width, children, and what the correction is multiplied with


class DominoLoop:
    """A head's loops for one target, with tables of its whole vocabulary.

    A graph serves all texts whose draft vocabularies are about as large.
    """

    def __init__(self, head: DominoHead, context: TensorContext) -> None:
        hidden, embedding = head.config.hidden, context.embedding
        mixed = cast(nn.Linear, head.embed_proj[0]).weight
        self._head, self.embedding = head, embedding
        self._from_state, self._from_prefix = mixed[:, :hidden], mixed[:, hidden:]
        everything = torch.arange(len(context.lm_head), device=embedding.device)
        self.outputs = head.factor_rows(context.lm_head, everything).contiguous()  # [vocab, rank]
        self._graphs = RecentGraphs[tuple[_Buffers, Graph[Tensor]]](_MOST_GRAPHS)

    @cached_property
    def _correction(self) -> "Correction":
        """What the loop of a chain reads, with three encoder widths for each token."""
        from kernels.gpu.domino import Correction  # needs Triton

        inputs, recurrent = self._head.prefix_gru.all_weights[0]
        return Correction(self.embedding @ inputs.T, torch.cat([self._from_prefix, recurrent]), self.outputs)

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

    def search(
        self, vocabulary: DraftVocabulary, states: Tensor, tokens: Sequence[int], width: int, children: int
    ) -> Candidates:
        """See `decoding.methods.head_runtimes.PathRuntime.candidates`; the host waits once."""
        sizes = width, min(children, len(vocabulary.ids)), vocabulary.sharpness
        _, graph = self._filled(vocabulary, states, tokens, sizes)
        ids, parents, totals = graph().cpu()
        return ids.long().tolist(), parents.long().tolist(), totals.tolist()

    def _filled(
        self, vocabulary: DraftVocabulary, states: Tensor, tokens: Sequence[int], sizes: "_Search | None" = None
    ) -> tuple[_Buffers, Graph[Tensor]]:
        """The graph for a chain, or a search of these sizes, of this length and vocabulary, with its buffers filled."""
        positions = torch.arange(len(tokens), len(tokens) + len(states), device=states.device)
        base = vocabulary.noisy(vocabulary.logits(states), positions)
        last = functional.embedding(sent(tokens[-1:], states.device), self.embedding)
        depth, size = len(states), -(-(len(vocabulary.ids) + len(states)) // _ROOM) * _ROOM
        key = depth, size, sizes, vocabulary.is_whole
        buffers, graph = self._graphs.get(key, partial(self._capture, *key))
        start = self._head.read(self._head.start(1), last)[0]
        places = states @ self._from_state.T
        buffers.fill(base if sizes else base / vocabulary.sharpness, vocabulary.ids, places, start)
        return buffers, graph

    def _capture(
        self, depth: int, size: int, sizes: "_Search | None", is_whole: bool
    ) -> tuple[_Buffers, Graph[Tensor]]:
        like = self._from_state
        buffers = _Buffers(
            torch.zeros(depth, size, dtype=torch.float32, device=like.device),
            torch.zeros(size, dtype=torch.long, device=like.device),
            like.new_zeros(depth, self.outputs.shape[1]),
            like.new_zeros(self._head.size("gru")),
        )
        if sizes:
            return buffers, Graph(partial(self._searched, buffers, *sizes, is_whole), like.device)
        from kernels.gpu.domino import correct_chain

        read = buffers.base, buffers.ids, buffers.places, buffers.start
        return buffers, Graph(partial(correct_chain, *read, self._correction), like.device)

    @torch.inference_mode()
    def _searched(self, read: _Buffers, width: int, children: int, sharpness: float, is_whole: bool) -> Tensor:
        """[3, nodes], fp64, which holds token ids exactly: tokens, parents, and log-probabilities of paths."""
        outputs = self.outputs if is_whole else self.outputs[read.ids]
        prefix, nodes = read.start[None], torch.full((1,), ROOT, device=read.ids.device)
        above, found, first = torch.zeros(1, dtype=torch.float64, device=read.ids.device), [], 0
        for depth, base in enumerate(read.base):
            scores = base.expand(len(prefix), -1)
            if depth:
                factor = functional.silu(read.places[depth] + prefix @ self._from_prefix.T) * sharpness
                scores = scores + functional.pad(factor @ outputs.T, (0, scores.shape[1] - len(outputs)))
            top = log_probabilities(scores).topk(children, dim=-1)
            ids = read.ids[top.indices].flatten()
            totals = (above[:, None] + top.values.double()).flatten()
            found.append(torch.stack([ids.double(), nodes.repeat_interleave(children).double(), totals]))
            above, best = totals.topk(min(width, len(totals)))
            nodes, first = first + best, first + len(ids)
            prefix = self._head.read(prefix[best // children], functional.embedding(ids[best], self.embedding))
        return torch.cat(found, 1)


def domino_loop(head: DominoHead, context: TensorContext) -> DominoLoop:
    """The head's loop for this target; one for all its texts."""
    loop: DominoLoop | None = head.kept.get("loop")
    if loop is None or loop.embedding is not context.embedding:
        loop = head.kept["loop"] = DominoLoop(head, context)
    return loop
