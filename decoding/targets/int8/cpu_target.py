"""The target in int8 on a processor: the model, and the sequences that it scores.

Its sums have one order, whatever other rows are in the batch: texts are equal to the bit under every method, in every batch,
and with any prefix from the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress, count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.cache_folder import cache_root
from decoding.checkpoints.mask_adapter import MaskAdapter
from decoding.checkpoints.model_config import ModelConfig, load_config
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampler import Floats, Sampler
from decoding.engine.target import Array, ForwardOutput, TokenSet
from decoding.targets import prefix_cache
from decoding.targets.cached_target import CACHE_BYTES, CachedTarget, Scored
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
from decoding.targets.int8.packing import KernelRotation, padded_matrix, stream_rotation
from decoding.targets.prefix_cache import WORTH_PAGES, DiskPrefixCache, Entry, StateTable, TokenTable
from kernels.cpu.job import MATRICES, PAGE, PHASES, Model, table_of
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
        """[rows, tokens], fp32, of tokens after those that the rows predict. heads: see `Ahead.heads`."""
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


CpuSequence = prefix_cache.CachedSequence[Pages]
Chunk = prefix_cache.Chunk[Pages]


class CpuTarget(CachedTarget[Pages, Pages]):
    """A target whose sequences keep keys and values in pages, which those with the same beginning share."""

    def __init__(self, model: CpuModel, cache_bytes: int = CACHE_BYTES, kept: DiskPrefixCache | None = None) -> None:
        """kept: prompts of earlier processes, to which this one adds its own."""
        super().__init__(cache_bytes)
        self.model: CpuModel = model
        self._kept_prompts = kept

    @classmethod
    def load(cls, path: Path, cache_bytes: int = CACHE_BYTES) -> "CpuTarget":
        """From a checkpoint folder, packed here. Raises ModelUnavailable, UnsupportedModel."""
        from decoding.checkpoints.weight_files import read_stored
        from decoding.targets.int8.packing import packed_model

        config = load_config(path)
        return cls(CpuModel(config, packed_model(config, read_stored(path))), cache_bytes)

    def open(self, prompt: Sequence[int], sampler: Sampler, taps: tuple[int, ...] = ()) -> CpuSequence:
        if self._kept_prompts and not taps:
            self._take(self._kept_prompts, prompt[:-1])
        return super().open(prompt, sampler, taps)

    def close(self, sequence: CpuSequence) -> None:
        kept = self._kept_prompts
        if kept:
            kept.write(sequence.tokens, sequence.cache.pages)
        super().close(sequence)

    def _take(self, kept: DiskPrefixCache, tokens: Sequence[int]) -> None:
        """Put what is kept of these tokens among the prefixes, unless as much is known."""
        _, known = self._longest(tokens, ()) or (None, 0)
        if len(tokens) - known >= WORTH_PAGES * PAGE and (pages := kept.read(tokens)):
            held, end = self.model.new_pages().of(pages), PAGE * len(pages)
            if end > known:
                no_states: StateTable[Floats] = StateTable(self.model.new_states(0))
                self._prefixes.add(Entry(tuple(tokens[:end]), (), (held, no_states), held.size_bytes))

    @property
    def weight_dtype(self) -> str:
        return "int8"

    @property
    def mask_pairs(self) -> KernelPairs | None:
        return self.model.mask_pairs

    @property
    def runtime(self) -> str:
        return "kernels"

    def _new_cache(self, source: Pages | None, count: int) -> Pages:
        return self.model.new_pages() if source is None else source.prefix(count)

    def _view(self, cache: Pages, count: int) -> Pages:
        return cache

    def _kept(self, cache: Pages, count: int) -> tuple[Pages, int]:
        return cache, cache.size_bytes

    def _run(self, chunks: Sequence[Chunk], taps: Sequence[int]) -> tuple[list[Scored], Array | None]:
        parts = [_part(chunk) for chunk in chunks]
        choices, head_rows, hidden = self.model.forward(parts, _keys(chunks), taps)
        asked, later = count(), count(len(choices))
        scored: list[Scored] = [
            _Scored(chunk, [next(later if masked else asked) for masked in _masked(chunk)], head_rows, choices)
            for chunk in chunks
            if chunk.is_last
        ]
        return scored, hidden


def kept_prompts(model: CpuModel, identity: str) -> DiskPrefixCache:
    """The prompts in the user's cache folder. identity: what changes with any of the model's numbers."""
    layout = model.new_pages().layout
    return DiskPrefixCache(cache_root() / "prompts", identity, PAGE, layout.shape, np.dtype(layout.dtype))


@dataclass(frozen=True, slots=True)
class _Scored:
    """What a forward says of a sequence. places: among the head rows, of the root and of each node."""

    chunk: Chunk
    places: Sequence[int]
    head_rows: HeadRows
    choices: Sequence[int]  # after the first of the head rows; after the others nobody has chosen yet

    def __call__(self, hidden: Array | None) -> ForwardOutput:
        nodes, ahead = len(self.chunk.draft), self._ahead if self.head_rows.model.ahead_heads else None
        return ForwardOutput(self._after, hidden, self._choice, nodes, self._among, self._log_prob, ahead)

    def _after(self, nodes: Sequence[int]) -> Floats:
        return self.head_rows.logits([self.places[1 + node] for node in nodes])

    def _among(self, nodes: Sequence[int], tokens: TokenSet) -> Floats:
        return self.head_rows.logits_of([self.places[1 + node] for node in nodes], tokens)

    def _ahead(self, asked: Sequence[tuple[int, int]], tokens: TokenSet | None) -> Floats:
        vocab, drafted = self.head_rows.model.config.vocab_size, self.chunk.draft.tokens
        heads = [(node != ROOT and drafted[node] >= vocab, count) for node, count in asked]
        return self.head_rows.logits_ahead([self.places[1 + node] for node, _ in asked], heads, tokens)

    def _log_prob(self, node: int) -> float | None:
        place = self.places[1 + node]
        if place >= len(self.choices) or self.chunk.sequence.sampler.temperature:
            return None
        return self.head_rows.largest_log_prob(place)

    def _choice(self, node: int) -> int:
        place = self.places[1 + node]
        if place < len(self.choices):
            return self.choices[place]
        (logits,) = self._after([node])
        return self.chunk.sequence.sampler.pick(logits, self.chunk.choice_positions[1 + node])


def _masked(chunk: Chunk) -> list[bool]:
    """Whether the choice after a row may wait until it is asked for; of the root and each node."""
    draft = chunk.draft
    return [False, *(token in draft.masks for token in draft.tokens)]


def _part(chunk: Chunk) -> Part:
    own = _own_rows(chunk.draft, len(chunk.pending))
    rows: tuple[list[int], list[int]] = ([], [])
    for row, masked in zip(chunk.head_rows(), _masked(chunk), strict=False):
        rows[masked].append(row)
    return Part(chunk.sequence.cache, chunk.before, chunk.tokens, own, *rows)


def _own_rows(draft: Draft, pending: int) -> list[list[int]] | None:
    """The rows of its chunk that each row sees: pending tokens those before them, a node all of them and its ancestors."""
    if draft.is_chain:
        return None
    own = [list(range(row + 1)) for row in range(pending)]
    for node, parent in enumerate(draft.parents):
        own.append([*own[pending - 1 if parent == ROOT else pending + parent], pending + node])
    return own


def _keys(chunks: Sequence[Chunk]) -> Keys:
    """Temperature, seed and position for each choice."""
    temperatures: list[float] = []
    seeds: list[int] = []
    positions: list[int] = []
    for chunk in chunks:
        if chunk.is_last:
            sampler, wanted = chunk.sequence.sampler, [not masked for masked in _masked(chunk)]
            positions += compress(chunk.choice_positions, wanted)
            temperatures += [sampler.temperature] * sum(wanted)
            seeds += [sampler.seed % (1 << 64)] * sum(wanted)
    return Keys(temperatures, seeds, positions)
