"""The forward of the target on a GPU, and its tables of keys and values.

Our kernels run between cuBLAS's products, captured once per size as a CUDA graph. Up to a few hundred tokens a forward takes as
long as its weights take to be read, if nothing waits for the processor: without graphs, the launches alone of a small model
take longer. Sizes are rounded up to buckets; the rows that are left over belong to no sequence. Without CUDA the same code runs
with the kernels' references and without graphs.

The accepted rows of all sequences of a round are moved together, in one or two launches. A commit only notes its move; the next
reader of a table, such as the next forward, makes all noted moves first.
"""

from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional

from decoding.targets.llama_model import Forwarded, Layer, LlamaModel, RopeTable, TensorTable
from kernels.gpu.compaction import Move, compact
from kernels.gpu.low_bit import LowBit
from kernels.gpu.low_bit_product import low_bit_product
from kernels.gpu.norm import adapt_and_norm, add_rms_norm, gated
from kernels.gpu.ragged import Graph, Ragged, RecentGraphs, SequenceRows, padded
from kernels.gpu.tree_attention import rotate_and_store, scale_planes, tree_attention


class Moves:
    """Moves of several tables that are noted and not yet made."""

    def __init__(self) -> None:
        self._noted: list[Move] = []

    def note(self, table: Tensor, start: int, rows: Sequence[int]) -> None:
        """The table must have no move noted already."""
        self._noted.append(Move(table, start, rows))

    @torch.inference_mode()
    def make(self) -> None:
        noted, self._noted = self._noted, []
        if noted:
            compact(noted)


class CudaTable(TensorTable):
    """A table that notes its moves. Its `data` are always up to date."""

    def __init__(
        self, moves: Moves, planes: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._moves = moves
        super().__init__(planes, shape, dtype, device)

    @property
    def data(self) -> Tensor:
        """[planes, capacity, *shape]."""
        self._moves.make()
        return self._data

    @data.setter
    def data(self, data: Tensor) -> None:
        self._data = data

    def compact(self, start: int, rows: Sequence[int]) -> None:
        self._moves.note(self._data, start, rows)


SIZES = (1, 8, 16, 24, 40, 72, 136, 264, 520)  # rows: powers of two, a root and forced tokens; more run without a graph
CAPTURED_AT_START = SIZES[:6]  # of one sequence, every row asked for: plain steps and most drafts
MOST_GRAPHS = 64
FORWARD_ROWS = 2048  # of a prompt at once: products are as fast as they get, and the LM head sees none of them
_Outcome = tuple[Tensor | None, Tensor | None, Tensor | None]
_Bucket = tuple[int, int, int, int]  # sequences, rows, width, rows whose logits are asked for
_Key = tuple[_Bucket, bool, tuple[int, ...]]  # whether there are mask tokens, and taps
_Captured = tuple[Ragged, Graph[_Outcome]]


def bucket_of(counts: Sequence[int], heads: int) -> _Bucket | None:
    """The sizes up to which sequences with so many rows are filled up; None where they are too large for a graph."""
    rows, width = _rounded(sum(counts)), _rounded(max(counts))
    asked = _rounded(heads) if heads else 0
    return (padded(len(counts), 1), rows, width, asked) if rows and width and asked is not None else None


def _rounded(count: int) -> int | None:
    return next((size for size in SIZES if size >= count), None)


class CudaModel(LlamaModel):
    """The forward on a GPU."""

    graphs = True  # whether forwards are captured
    fp8_cache = False  # whether keys and values are kept in FP8; to be decided before the first forward
    forward_rows = FORWARD_ROWS
    chooses_together = True

    @cached_property
    def _graphs(self) -> RecentGraphs[_Captured]:
        """Each with the buffers that it reads."""
        return RecentGraphs(MOST_GRAPHS)

    @cached_property
    def _prepared(self) -> set[tuple[int, ...]]:
        """Taps for which the usual forwards were captured."""
        return set()

    @cached_property
    def _moves(self) -> Moves:
        """Of all sequences."""
        return Moves()

    @cached_property
    def _pool(self) -> tuple[int, int] | None:
        """Memory that all graphs use in turn."""
        return torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    @cached_property
    def _rope_table(self) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [positions, head_dim] of all positions: captured graphs need them to stay."""
        config = self.config
        table = RopeTable(config.rope, config.head_dim, self.dtype, self.device)
        pair = table.at(torch.arange(config.max_positions, device=self.device), config.max_positions)
        cos, sin = (part.reshape(-1, config.head_dim).contiguous() for part in pair)
        return cos, sin

    def low_bit_product(self, x: Tensor, weight: LowBit, bias: Tensor | None) -> Tensor:
        return low_bit_product(x, weight, bias)

    def new_table(self) -> TensorTable:
        planes, dim = self._planes, self.config.head_dim
        if not self.fp8_cache:
            return CudaTable(self._moves, planes, (dim,), self.dtype, self.device)
        return CudaTable(self._moves, planes + scale_planes(planes, dim), (dim,), torch.uint8, self.device)

    @property
    def _planes(self) -> int:
        """Of keys and values in a table."""
        return self.config.layers * 2 * self.config.kv_heads

    @property
    def _scales_at(self) -> int:
        return self._planes if self.fp8_cache else 0

    def new_states(self, taps: int) -> TensorTable:
        return CudaTable(self._moves, taps, (self.config.hidden_size,), self.dtype, self.device)

    @torch.inference_mode()
    def prepare(self, taps: tuple[int, ...] = ()) -> None:
        """Capture what most rounds need, so that no first question waits for it; once for the same taps."""
        if taps in self._prepared:
            return
        self._prepared.add(taps)
        for size in CAPTURED_AT_START if self.graphs else ():
            self._captured(((1, size, size, size), False, taps))
            if self.masks and size > 1:
                self._captured(((1, size, size, size), True, taps))

    def forward(self, rows: Sequence[SequenceRows], taps: Sequence[int], heads: Sequence[int]) -> Forwarded:
        bucket = bucket_of([len(each) for each in rows], len(heads)) if self.graphs else None
        masked = self.masks is not None and any(max(each.tokens) >= self.config.vocab_size for each in rows)
        if bucket is None:
            logits, hidden, streams = self._computed(Ragged.of(rows, heads, self._scales_at), masked, tuple(taps))
        else:
            ragged, graph = self._captured((bucket, masked, tuple(taps)))
            ragged.fill(rows, heads)
            logits, hidden, streams = graph()
            ragged.parts.clear()  # a table goes with its sequence
        if logits is None:
            return Forwarded(self.final_norm.new_empty(0, self.config.vocab_size, dtype=torch.float32), hidden, None)
        asked = slice(len(heads))  # copied, since the next forward overwrites a graph's
        return Forwarded(
            logits[asked].to(torch.float32, copy=True), hidden, None if streams is None else streams[asked].clone()
        )

    def _captured(self, key: _Key) -> _Captured:
        return self._graphs.get(key, partial(self._capture, *key))

    def _capture(self, bucket: _Bucket, masked: bool, taps: tuple[int, ...]) -> _Captured:
        sequences, rows, width, heads = bucket
        ragged = Ragged(sequences, rows, width, self.device, heads, scales_at=self._scales_at)
        return ragged, Graph(partial(self._computed, ragged, masked, taps), self.device, self._pool)

    def _computed(self, ragged: Ragged, masked: bool, taps: tuple[int, ...]) -> _Outcome:
        """Logits, in the weights' type, of the rows that are asked for, None without such; hidden states; and streams.

        masked: whether rows may be mask tokens'.
        """
        x, which = self._embedded(ragged.token, masked)
        states, layers, eps = {0: x}, self.layers, self.config.rms_norm_eps
        following = [*(layer.attention_norm for layer in layers[1:]), self.final_norm]
        normed = self.norm(x, layers[0].attention_norm)
        for index, (layer, next_norm) in enumerate(zip(layers, following, strict=True)):
            if self.masks and which is not None:
                factors = self.masks.factors(index)
                x, normed = adapt_and_norm(x, normed, which, *factors, layer.attention_norm, eps)
            x, normed = add_rms_norm(x, self._mixed(layer, index, normed, ragged), layer.mlp_norm, eps)
            x, normed = add_rms_norm(x, layer.down(gated(layer.gate_up(normed))), next_norm, eps)
            if index + 1 in taps:
                states[index + 1] = normed if index + 1 == len(layers) else x
        hidden = torch.stack([states[tap] for tap in taps]) if taps else None
        if not ragged.heads:
            return None, hidden, None
        return self.head(normed[ragged.wanted]), hidden, x[ragged.wanted] if self.ahead_heads else None

    def _embedded(self, tokens: Tensor, masked: bool) -> tuple[Tensor, Tensor | None]:
        """Embeddings [rows, hidden], and which rows are mask tokens' (None: none can be)."""
        if not (self.masks and masked):
            return functional.embedding(tokens, self.embedding), None
        known = functional.embedding(tokens.clamp_max(self.config.vocab_size - 1), self.embedding)
        return self.masks.embedded(tokens, known)

    def _mixed(self, layer: Layer, index: int, normed: Tensor, ragged: Ragged) -> Tensor:
        """What attention adds."""
        config, (cos, sin) = self.config, self._rope_table
        qkv = layer.qkv(normed).view(len(normed), -1, config.head_dim)
        query = rotate_and_store(qkv, layer.qk_norm, cos, sin, ragged, index, config.kv_heads, config.rms_norm_eps)
        return layer.attention_out(tree_attention(query, ragged, index, config.kv_heads).flatten(1))
