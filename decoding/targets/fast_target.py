"""Our own target for the Llama, Qwen2 and Qwen3 families, on torch's operators or on a GPU, and its forward.

The forward takes tokens of several sequences at once. The linear layers see all rows together; attention goes sequence by
sequence, each over its own keys and values. Nothing here imports transformers, which alone takes seconds; `hf_target` is the
reference that this must equal.

It is equal to `hf_target` within rounding. In fp32, logits differ by less than 2e-5 on the tiny models of the tests (they reach
8 there) and by less than 3e-4 on the embedded model (40); in bf16 they are as near to fp32 as transformers' own. Statistics of
norms and softmaxes are in fp32 whatever the type of the weights; logits leave as fp32.

On a processor the matrix products are three quarters of a step. Tried and left out: adding the residual within the product and
attention by two products (no faster), the norm by hand (below 1 % of a step).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampler import Floats, Sampler
from decoding.engine.target import Array, ForwardOutput, TokenSet
from decoding.engine.tensor_choice import chooser, chosen_together, dtype_name, rows_of, scores_of
from decoding.targets import prefix_cache
from decoding.targets.cached_target import CACHE_BYTES, CachedTarget, Scored
from decoding.targets.llama_model import (
    Forwarded,
    Layer,
    LlamaModel,
    SharedTable,
    TensorTable,
    attend,
    attend_behind,
    attention_bias,
    rotate,
)
from kernels.gpu.ragged import SequenceRows, sent


@dataclass(frozen=True, slots=True)
class _Span:
    """A sequence's rows as attention reads them: lists of one tensor per layer, all views of the sequence's table."""

    rows: slice  # of the forward
    slots: Sequence[Tensor]  # [rows, 2, kv_heads, head_dim]: where its keys and values go
    keys: Sequence[Tensor]  # [1, kv_heads, before + rows, head_dim], without those of a prefix
    values: Sequence[Tensor]
    prefix: Sequence[Tensor] | None  # [2, 1, kv_heads, tokens, head_dim]: keys and values that other sequences have too
    bias: Tensor | None  # see `attend`
    causal: bool


class FastModel(LlamaModel):
    """The forward on a processor, or on any device that torch has."""

    def forward(self, rows: Sequence[SequenceRows], taps: Sequence[int], heads: Sequence[int]) -> Forwarded:
        wanted, positions = self._ids(heads), list(chain.from_iterable(each.positions for each in rows))
        cos, sin = self.rope.at(self._ids(positions), max(positions) + 1)
        spans = list(self._spans(rows))
        tokens = list(chain.from_iterable(each.tokens for each in rows))
        x, masks = self._embedded(tokens)
        states = {0: x}
        for index, layer in enumerate(self.layers):
            if self.masks and masks is not None:
                x = self.masks.adapt(index, masks, x)
            x = self._attention(layer, index, x, cos, sin, spans)
            x = self._mlp(layer, x)
            if index + 1 in taps:
                states[index + 1] = x
        streams = x[wanted] if self.ahead_heads else None
        if len(self.layers) in taps:
            x = states[len(self.layers)] = self.norm(x, self.final_norm)
            x = x[wanted]
        else:
            x = self.norm(x[wanted], self.final_norm)
        hidden = torch.stack([states[tap] for tap in taps]) if taps else None
        logits = self.head(x).float() if heads else x.new_empty(0, self.config.vocab_size)
        return Forwarded(logits, hidden, streams)

    def _embedded(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Embeddings [rows, hidden], and the rows of mask tokens, if there are any."""
        if self.masks is None or max(tokens) < self.config.vocab_size:
            return functional.embedding(self._ids(tokens), self.embedding), None
        rows, known = self.masks.rows(tokens), [min(token, self.config.vocab_size - 1) for token in tokens]
        x = functional.embedding(self._ids(known), self.embedding)
        self.masks.embed(tokens, rows, x)
        return x, rows

    def _ids(self, values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.long, device=self.device)

    def _spans(self, rows: Sequence[SequenceRows]) -> Iterator[_Span]:
        starts = accumulate((len(each) for each in rows), initial=0)
        for each, ends in zip(rows, pairwise(starts), strict=True):
            yield self._span(slice(*ends), each)

    def _span(self, place: slice, rows: SequenceRows) -> _Span:
        count, seen, shape = len(rows), rows.seen, (self.config.layers, 2, 1, self.config.kv_heads)
        planes = rows.table.view(*shape, *rows.table.shape[1:])
        slots = planes[:, :, 0, :, rows.slots].permute(0, 3, 1, 2, 4)
        keys, values = planes[..., : rows.slots.stop, :].unbind(1)
        prefix = None if rows.prefix is None else rows.prefix.view(*shape, *rows.prefix.shape[1:]).unbind(0)
        causal = seen is None and rows.before == 0 and count > 1
        bias = None
        if count > 1 and not causal:
            seen = torch.ones(count, count, dtype=torch.bool).tril() if seen is None else seen
            group = self.config.heads // self.config.kv_heads
            bias = attention_bias(seen.to(self.device), rows.slots.start, group, self.dtype)
        return _Span(place, slots.unbind(0), keys.unbind(0), values.unbind(0), prefix, bias, causal)

    def _attention(
        self, layer: Layer, index: int, x: Tensor, cos: Tensor, sin: Tensor, spans: Sequence[_Span]
    ) -> Tensor:
        heads, rotated = self.config.heads, self.config.heads + self.config.kv_heads
        qkv = layer.qkv(self.norm(x, layer.attention_norm)).view(len(x), -1, self.config.head_dim)
        if layer.qk_norm is not None:
            normed = functional.rms_norm(qkv[:, :rotated], qkv.shape[2:], None, self.config.rms_norm_eps)
            torch.mul(normed, layer.qk_norm, out=qkv[:, :rotated])
        rotate(qkv[:, :rotated], cos, sin)
        query, new = qkv[:, :heads], qkv[:, heads:].view(len(x), 2, -1, self.config.head_dim)
        out = []
        for span in spans:
            span.slots[index].copy_(new[span.rows])
            keys, values, mine = span.keys[index], span.values[index], query[span.rows]
            if span.prefix is None:
                out.append(attend(mine, keys, values, span.bias, span.causal))
            else:
                out.append(attend_behind(span.prefix[index], mine, keys, values, span.bias))
        return layer.attention_out(out[0] if len(out) == 1 else torch.cat(out)).add_(x)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(self.norm(x, layer.mlp_norm)).chunk(2, 1)
        return layer.down(functional.silu(gate).mul_(up)).add_(x)


CHUNK_ROWS = 128  # attention goes chunk by chunk, so a prompt's first rows do not meet the keys of its last ones
FastSequence = prefix_cache.CachedSequence[SharedTable]
Chunk = prefix_cache.Chunk[SharedTable]


class FastTarget(CachedTarget[SharedTable, SharedTable]):
    """A target whose sequences each have a table of keys and values, a plane per layer, whose first rows they may share.

    cache_bytes: memory for the prefixes of closed sequences, and a quarter more for their buffers; 0 keeps nothing.
    """

    mode = torch.inference_mode
    prepares_taps = True  # whether `LlamaModel.prepare` may run by itself, not in step with other processes

    def __init__(self, model: LlamaModel, cache_bytes: int = CACHE_BYTES) -> None:
        super().__init__(cache_bytes)
        self.model: LlamaModel = model
        self._idle: list[TensorTable] = []  # buffers of closed sequences that wait for new ones
        self._idle_bytes = cache_bytes // 4

    @classmethod
    def load(
        cls,
        path: Path,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        cache_bytes: int = CACHE_BYTES,
    ) -> "FastTarget":
        """From a checkpoint folder. Raises ModelUnavailable, UnsupportedModel."""
        return cls(FastModel(load_config(path), read_weights(path), dtype, device), cache_bytes)

    def open(self, prompt: Sequence[int], sampler: Sampler, taps: tuple[int, ...] = ()) -> FastSequence:
        if taps and self.prepares_taps:
            self.model.prepare(taps)
        return super().open(prompt, sampler, taps)

    @property
    def weight_dtype(self) -> str:
        return "stored" if self.model.is_packed else dtype_name(self.model.dtype)

    @property
    def runtime(self) -> str:
        return self.model.device.type

    @property
    def _chunk_rows(self) -> int:
        return self.model.forward_rows or CHUNK_ROWS

    @property
    def _forward_rows(self) -> int:
        return self.model.forward_rows or super()._forward_rows

    def _new_cache(self, source: SharedTable | None, count: int) -> SharedTable:
        own = self._idle.pop() if self._idle else self.model.new_table()
        return SharedTable(own) if source is None else source.begin(count, own)

    def _view(self, cache: SharedTable, count: int) -> SharedTable:
        return cache

    def _kept(self, cache: SharedTable, count: int) -> tuple[SharedTable, int]:
        kept = cache.kept(count)
        return kept, kept.nbytes

    def _released(self, cache: SharedTable) -> None:
        if cache.is_lent:  # its rows stay as they are for those who read them
            return
        if sum(table.data.nbytes for table in (*self._idle, cache.own)) <= self._idle_bytes:
            self._idle.append(cache.own)

    def _run(self, chunks: Sequence[Chunk], taps: Sequence[int]) -> tuple[list[Scored], Tensor | None]:
        out = self.model.forward([sequence_rows(chunk) for chunk in chunks], taps, head_rows(chunks))
        last = [chunk for chunk in chunks if chunk.is_last]
        choosers, counts = self._choosers(last, out.logits) if last else (), [1 + len(chunk.draft) for chunk in last]
        heads: list[Callable[..., Floats] | None] = [None] * len(last)
        if out.streams is not None:
            streams = torch.split(out.streams, counts)
            heads = [partial(self._ahead, chunk.draft, each) for chunk, each in zip(last, streams, strict=True)]
        parts = zip(torch.split(out.logits, counts), choosers, heads, strict=True)
        return [partial(_scores, *each) for each in parts], out.hidden

    def _ahead(
        self, draft: Draft, streams: Tensor, asked: Sequence[tuple[int, int]], tokens: TokenSet | None
    ) -> Floats:
        """`ForwardOutput.ahead` of a draft, from the streams [1 + nodes, hidden] of its root and nodes."""
        heads = [(node != ROOT and draft.tokens[node] >= self.vocab_size, count) for node, count in asked]
        logits = self.model.logits_ahead(streams[sent([1 + node for node, _ in asked], streams.device)], heads)
        return rows_of(logits, tokens)

    def _choosers(self, last: Sequence[Chunk], logits: Tensor) -> Sequence[Callable[[int], int]]:
        """The choice after every row of each sequence."""
        samplers, positions = [chunk.sequence.sampler for chunk in last], [chunk.choice_positions for chunk in last]
        if self.model.chooses_together:
            return [each.__getitem__ for each in chosen_together(samplers, logits, positions)]
        parts = torch.split(logits, [len(places) for places in positions])
        each_one = zip(samplers, parts, positions, strict=True)
        return [chooser(sampler, part, places.__getitem__) for sampler, part, places in each_one]


def _scores(
    logits: Tensor, choose: Callable[[int], int], ahead: Callable[..., Floats] | None, hidden: Array | None
) -> ForwardOutput:
    return replace(scores_of(logits, hidden, choose), ahead=ahead)


def head_rows(chunks: Sequence[Chunk]) -> list[int]:
    """Rows of a forward of these chunks whose logits are wanted."""
    starts = accumulate(map(len, chunks), initial=0)
    return [start + row for chunk, start in zip(chunks, starts, strict=False) for row in chunk.head_rows()]


def sequence_rows(chunk: Chunk) -> SequenceRows:
    """A chunk as a forward takes it."""
    cache, seen = chunk.sequence.cache, seen_rows(chunk.draft, len(chunk.pending))
    return SequenceRows(cache.own.data, chunk.before, chunk.tokens, row_positions(chunk), seen, cache.prefix)


def row_positions(chunk: Chunk) -> list[int]:
    """Positions in the text: a node counts from the root by its depth, and siblings share a position."""
    root = chunk.before + len(chunk.pending) - 1
    return [*range(chunk.before, root + 1), *(root + depth for depth in chunk.draft.depths)]


def seen_rows(draft: Draft, pending: int) -> Tensor | None:
    """[rows, rows] which of a chunk's rows each of them sees; None where that is all up to itself.

    Pending tokens see those before them; a node sees them all, its ancestors and itself.
    """
    if draft.is_chain:
        return None
    seen = np.tri(pending + len(draft), dtype=bool)
    for node, parent in enumerate(draft.parents):
        row = pending + node
        seen[row, pending:] = seen[pending + parent, pending:] if parent != ROOT else False
        seen[row, row] = True
    return torch.from_numpy(seen)
