"""The forward of an int8 model on a processor: what `forward` is compiled from gets its addresses here. No bookkeeping."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.mask_adapter import MaskAdapter
from decoding.checkpoints.model_config import ModelConfig
from decoding.engine.sampler import Floats
from decoding.engine.target import TokenSet
from decoding.targets.int8.buffers import (
    Angles,
    Buffers,
    ByteLayout,
    HeadBuffers,
    Keys,
    Longs,
    Pages,
    Part,
    RowTables,
    address,
)
from decoding.targets.int8.compiled import FORWARD, compiled
from decoding.targets.int8.mask_rows import AheadHeads, KernelPairs, MaskRows
from decoding.targets.int8.packed_model import Arrays, HeadPart, StoredRows, head_room, padded
from decoding.targets.int8.rounding import KernelRotation, padded_matrix, stream_rotation
from decoding.targets.kv_cache import TokenTable
from kernels.cpu.job import MATRICES, PHASES, Model, table_of
from kernels.cpu.threads import WorkerPool, thread_count

_ALONE = 1 << 24
"""Products of numbers that one thread has done before another one has come to help."""


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows before the LM head, from which logits can be had afterwards."""

    model: "CpuModel"
    bytes: npt.NDArray[np.uint8]  # [rows, hidden]
    scales: Floats  # [rows]
    spreads: Floats  # [rows for which a token was chosen, chunks, 2]: see `Job.spreads`

    def logits(self, rows: Sequence[int]) -> Floats:
        """[rows, vocab], fp32."""
        return self.model.logits(self.bytes[rows], self.scales[rows])

    def largest_log_prob(self, row: int) -> float:
        """Natural log-probability of the most likely token after a row for which one was chosen greedily."""
        tops, sums = self.spreads[row].astype(np.float64).T
        return -float(np.log((np.exp(tops - tops.max()) * sums).sum()))

    def logits_of(self, rows: Sequence[int], tokens: TokenSet) -> Floats:
        """[rows, tokens], fp32."""
        return self.model.logits(self.bytes[rows], self.scales[rows], tokens)

    def logits_ahead(self, rows: Sequence[int], heads: Sequence[tuple[bool, int]], tokens: TokenSet | None) -> Floats:
        """[rows, tokens], fp32, of tokens after those that the rows predict. heads: see `AheadHeads.applied`."""
        assert self.model.ahead_heads is not None
        found, scales = self.bytes[rows], self.scales[rows]
        self.model.ahead_heads.apply(found, scales, heads)
        return self.model.logits(found, scales, tokens)


class CpuModel:
    """Weights, as `packed_model` gives them, and forward. One thread at a time may call it.

    masks: what mask tokens get; their ids follow those of the vocabulary, one for each depth.
    """

    def __init__(
        self, config: ModelConfig, arrays: Arrays, threads: int | None = None, masks: MaskAdapter | None = None
    ) -> None:
        self.config, self._arrays = config, arrays
        self.dim, self.hidden = head_room(config), padded(config.hidden_size)
        self._team = WorkerPool(threads or thread_count(), PHASES * config.layers + 2)
        self._tables = _addresses(config, arrays)
        self._masks = MaskRows(config, masks) if masks else None
        self._turn_back = padded_matrix(stream_rotation(config.hidden_size).T.astype(np.float32))
        self._model = _model(config, arrays, self._tables, self._masks, self._turn_back)
        self._model_table = table_of(self._model)
        self.ahead_heads = AheadHeads(config, masks.ahead, self._model) if masks and masks.ahead else None
        self._room = Buffers(self._model, self._team.threads)
        self._angles = Angles(config.rope.frequencies(config.head_dim), self.dim)
        self.mask_adapter = masks
        self.mask_pairs = KernelPairs(masks.pairs) if masks and masks.pairs else None
        self._forward = compiled(FORWARD)

        self._rows = StoredRows(arrays.get("rotated_embedding"))
        self.embedding = arrays["embedding"]
        self.lm_head = self.embedding if config.tie_embeddings else arrays["lm_head"]

    def warm_up(self) -> None:
        """Compile or load what a forward needs."""
        pages = self.new_pages()
        pages.reserve(1)
        self.forward([Part(pages, 0, [0], None, [0])], Keys([0.0], [0], [1]), ())

    def new_pages(self) -> Pages:
        """The pages of a sequence with nothing cached."""
        return Pages(ByteLayout(self.config.layers * self.config.kv_heads, self.dim))

    def new_states(self, taps: int) -> TokenTable[Floats]:
        """An empty table for the hidden states of one sequence: a plane per tap."""
        return TokenTable(taps, (self.config.hidden_size,), _empty)

    def forward(
        self, parts: Sequence[Part], keys: Keys, taps: Sequence[int]
    ) -> tuple[list[int], HeadRows, Floats | None]:
        """The choice after every row of `Part.heads`, these rows and then those of `Part.later`, and hidden states [taps,
        rows, hidden] (None without taps).

        Writes the keys and values of the rows into their sequences' pages, which must have room for them.
        """
        counts = [part.counts for part in parts]
        starts = list(accumulate((len(part.tokens) for part in parts), initial=0))
        rows = starts[-1]
        tables = RowTables(parts, counts, starts)
        heads = [start + row for part, start in zip(parts, starts, strict=False) for row in part.heads]
        asked = len(heads)
        heads += [start + row for part, start in zip(parts, starts, strict=False) for row in part.later]
        room = self._room.of(rows, max(part.before + len(part.tokens) for part in parts))
        masks = self._embed(tables.tokens, room.x[:rows])
        cos, sin = self._angles.at(tables.positions)
        planes = np.full(self.config.layers + 1, -1, np.int32)
        planes[list(taps)] = range(len(taps))
        states = np.empty((len(taps), rows, self.hidden + 64), np.float32)
        head = HeadBuffers(len(heads), self.hidden, self._team.threads, keys, asked, self.config.vocab_size)
        head_rows = np.array(heads, np.int32)
        job = room.job._replace(
            layers=self.config.layers,
            rows=rows,
            cos=address(cos),
            sin=address(sin),
            slots=address(tables.slots),
            pages=address(tables.pages),
            masks=0 if masks is None else address(masks),
            tiles=address(tables.tiles),
            tile_count=len(tables.tiles),
            one_part=len(parts) == 1,
            parts=address(tables.parts),
            tap_count=len(taps),
            tap_planes=address(planes),
            taps=address(states),
            head_rows=address(head_rows),
            **head.fields(),
        )
        self._run(table_of(job), self._model_table)
        kept = HeadRows(self, head.bytes, head.scales, head.spreads)
        return head.tokens[0, :asked].tolist(), kept, self._tapped(states, taps)

    def logits(self, rows: npt.NDArray[np.uint8], scales: Floats, tokens: TokenSet | None = None) -> Floats:
        """[rows, vocab] of quantized rows before the LM head, or [rows, tokens] of some tokens."""
        places = None if tokens is None else self.head_part.places(tokens)
        logits = np.empty((len(rows), self.config.vocab_size if places is None else self.head_part.count), np.float32)
        model_table = self._model_table if places is None else self.head_part.table
        table = self._room.of(1, 1).head_table(rows, scales, logits)
        self._run(table, model_table, alone=logits.size * self.hidden <= _ALONE)
        return logits if places is None else logits.take(places, 1)  # a row lies in one piece

    @cached_property
    def _turn(self) -> KernelRotation:
        return KernelRotation(stream_rotation(self.config.hidden_size).astype(np.float32))

    @cached_property
    def head_part(self) -> HeadPart:
        """The LM head of some tokens."""
        outputs, arrays = padded(self.config.vocab_size), self._arrays
        rows = arrays["matrices"].reshape(-1)[-outputs * self.hidden :]
        return HeadPart(self._model, rows, arrays["scales"][-outputs:], arrays["offsets"][-outputs:])

    def _run(self, table: Longs, model_table: Longs, alone: bool = False) -> None:
        """A forward. alone: on the caller's thread, not on all."""
        places = address(model_table), address(table)
        if alone:
            self._team.run_alone(self._forward, *places)
        else:
            self._team.run(self._forward, *places, kept=(table, model_table))

    def _embed(self, tokens: Longs, x: Floats) -> npt.NDArray[np.bool_] | None:
        """Rotated embeddings of tokens, into the stream x [rows, padded hidden]; returns which rows are mask tokens' (None:
        no row).
        """
        masks = tokens >= self.config.vocab_size
        if "rotated_embedding" in self._arrays:
            self._rows.take(np.where(masks, 0, tokens), x)
        else:  # layers above another model's embedding
            x[:, : self.config.hidden_size] = self._turn(self.embedding[tokens])
            x[:, self.config.hidden_size :] = 0
        if self._masks is None or not masks.any():
            return None
        x[masks] = self._masks.embeddings[tokens[masks] - self.config.vocab_size]
        return masks

    def _tapped(self, states: Floats, taps: Sequence[int]) -> Floats | None:
        """Hidden states, normalised where the tap is after the final norm."""
        if not taps:
            return None
        out = states[..., : self.config.hidden_size]
        if self.config.layers in taps:
            last = out[list(taps).index(self.config.layers)]
            last /= np.sqrt(np.square(last).mean(-1, keepdims=True) + np.float32(self.config.rms_norm_eps))
            last *= self._arrays["final_norm"]
        return out


def _empty(shape: tuple[int, ...]) -> Floats:
    return np.empty(shape, np.float32)


def _addresses(config: ModelConfig, arrays: Arrays) -> Longs:
    """[matrices, scales, offsets, biases] of each matrix [4, 4 layers + 1]."""
    hidden, inner = padded(config.hidden_size), padded(config.intermediate_size)
    width, dim = config.heads * head_room(config), head_room(config)
    layer = [(width + 2 * config.kv_heads * dim, hidden), (hidden, width), (2 * inner, hidden), (hidden, inner)]
    shapes = [*layer * config.layers, (padded(config.vocab_size) if "lm_head" in arrays else 0, hidden)]
    sizes = list(accumulate((outputs * inputs for outputs, inputs in shapes), initial=0))
    firsts = list(accumulate((4 * outputs for outputs, _ in shapes), initial=0))
    assert len(shapes) == MATRICES * config.layers + 1
    assert sizes[-1] == arrays["matrices"].size
    names = ["scales", "offsets", *(["biases"] if arrays["biases"].size else [])]
    table = np.zeros((4, len(shapes)), np.int64)
    table[0] = address(arrays["matrices"]) + np.array(sizes[:-1])
    for index, name in enumerate(names, 1):
        table[index] = address(arrays[name]) + np.array(firsts[:-1])
    return table


def _model(config: ModelConfig, arrays: Arrays, tables: Longs, masks: MaskRows | None, turn_back: Floats) -> Model:
    matrices, scales, offsets, biases = (address(row) for row in tables)
    return Model(
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        dim=head_room(config),
        true_dim=config.head_dim,
        hidden=padded(config.hidden_size),
        true_hidden=config.hidden_size,
        inner=padded(config.intermediate_size),
        vocab=config.vocab_size,
        matrices=matrices,
        scales=scales,
        offsets=offsets,
        biases=biases,
        qk_norms=address(arrays["qk_norms"]) if config.qk_norm else 0,
        mask_rank=masks.rank if masks else 0,
        mask_layers=address(masks.layers) if masks else 0,
        turn=address(turn_back),
        turned=len(turn_back),
        eps=config.rms_norm_eps,
    )
