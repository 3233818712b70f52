"""The forward of an int8 model on a processor: what `forward` is compiled from gets its addresses here. No bookkeeping."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.checkpoints.model_config import ModelConfig
from decoding.targets.cpu.compiled import compiled_forward
from decoding.targets.cpu.forward import GROUP_ROWS, MATRICES, PHASES, Job, Model
from decoding.targets.cpu.packed_model import Arrays, head_room, padded
from decoding.targets.cpu.pages import Pages
from decoding.targets.fast_ops import inverse_frequencies
from decoding.targets.int8.rotation import rotated, stream_rotation
from kernels.cpu.lm_head import CHUNK
from kernels.cpu.threads import Team, thread_count
from kernels.cpu.tree_attention import PAGE

_FEW_ROWS = 64
_LINE = 64  # bytes: what separates the threads' memory

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """What one sequence feeds. Row i sees all that went before and `own[i]`, which ends with itself."""

    pages: Pages
    before: int  # positions cached, all of them seen
    tokens: Sequence[int]
    own: Sequence[Sequence[int]] | None  # rows of this part, ascending; None: every row sees all up to itself
    heads: Sequence[int]  # rows of this part whose logits are wanted

    @property
    def counts(self) -> list[int]:
        """How many of its own rows each row sees."""
        return [len(rows) for rows in self.own] if self.own else list(range(1, len(self.tokens) + 1))


@dataclass(frozen=True, slots=True)
class Keys:
    """By which the choice after each wanted row is made: temperature, seed, and position of what is chosen."""

    temperatures: Sequence[float]
    seeds: Sequence[int]
    positions: Sequence[int]


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows before the LM head, from which logits can be had afterwards."""

    model: "CpuModel"
    bytes: npt.NDArray[np.uint8]  # [rows, hidden]
    scales: npt.NDArray[np.float32]  # [rows]

    def logits(self, rows: Sequence[int]) -> Tensor:
        """[rows, vocab], fp32."""
        return self.model.logits(self.bytes[rows], self.scales[rows])


class CpuModel:
    """Weights, as `packed_model` gives them, and forward. One thread at a time may call it."""

    def __init__(self, config: ModelConfig, arrays: Arrays, threads: int | None = None) -> None:
        self.config, self._arrays = config, arrays
        self.dim, self.hidden = head_room(config), padded(config.hidden_size)
        self._team = Team(threads or thread_count(), PHASES * config.layers + 2)
        self._tables = _addresses(config, arrays)
        self._model = _model(config, arrays, self._tables)
        self._room = _Room(self._model, self._team.threads)
        self._cos = self._sin = np.zeros((0, self.dim // 2), np.float32)
        self._forward = compiled_forward()

        self.embedding = torch.from_numpy(arrays["embedding"])
        self.lm_head = self.embedding if config.tie_embeddings else torch.from_numpy(arrays["lm_head"])

    def warm_up(self) -> None:
        """Compile or load what a forward needs."""
        pages = self.new_pages()
        pages.reserve(1)
        self.forward([Part(pages, 0, [0], None, [0])], Keys([0.0], [0], [1]), ())

    def new_pages(self) -> Pages:
        """Of a sequence with nothing cached."""
        return Pages(self.config.layers * self.config.kv_heads, self.dim)

    def forward(self, parts: Sequence[Part], keys: Keys, taps: Sequence[int]) -> tuple[list[int], HeadRows, Tensor | None]:
        """The choice after every wanted row, these rows, and hidden states [taps, rows, hidden] (None without taps).

        Writes the keys and values of the rows into their sequences' pages, which must have room for them.
        """
        counts = [part.counts for part in parts]
        starts = list(accumulate((len(part.tokens) for part in parts), initial=0))
        rows = starts[-1]
        tables = _Tables(parts, counts, starts)
        heads = [start + row for part, start in zip(parts, starts, strict=False) for row in part.heads]
        room = self._room.of(rows, max(part.before + len(part.tokens) for part in parts), tables.tile_rows)
        np.take(self._arrays["rotated_embedding"], tables.tokens, 0, out=room.x[:rows])
        cos, sin = self._angles(tables.positions)
        planes = np.full(self.config.layers + 1, -1, np.int32)
        planes[list(taps)] = range(len(taps))
        states = np.empty((len(taps), rows, self.hidden), np.float32)
        head = _Head(len(heads), self.hidden, self._team.threads, keys)
        head_rows = np.array(heads, np.int32)
        job = room.job._replace(
            layers=self.config.layers,
            rows=rows,
            cos=_at(cos),
            sin=_at(sin),
            slots=_at(tables.slots),
            pages=_at(tables.pages),
            tiles=_at(tables.tiles),
            tile_count=len(tables.tiles),
            parts=_at(tables.parts),
            tap_planes=_at(planes),
            taps=_at(states),
            head_rows=_at(head_rows),
            **head.fields(),
        )
        self._team.run(self._forward, self._model, job)
        return head.tokens[0].tolist(), HeadRows(self, head.bytes, head.scales), self._tapped(states, taps)

    def logits(self, rows: npt.NDArray[np.uint8], scales: npt.NDArray[np.float32]) -> Tensor:
        """[rows, vocab] of quantized rows before the LM head."""
        logits = np.empty((len(rows), self.config.vocab_size), np.float32)
        head = _Head(len(rows), self.hidden, self._team.threads, Keys([], [], []))
        head.bytes, head.scales = np.ascontiguousarray(rows), np.ascontiguousarray(scales)
        job = self._room.of(1, 1, 1).job._replace(layers=0, rows=0, logits=_at(logits), **head.fields())
        self._team.run(self._forward, self._model, job)
        return torch.from_numpy(logits)

    def _angles(self, positions: Longs) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosines and sines [rows, dim / 2], computed for all positions up to twice the last when first needed."""
        end = int(positions.max()) + 1
        if end > len(self._cos):
            half = self.config.head_dim // 2
            frequencies = inverse_frequencies(self.config.rope, self.config.head_dim).numpy()
            angles = np.arange(2 * end, dtype=np.float32)[:, None] * frequencies
            self._cos, self._sin = (np.zeros((2 * end, self.dim // 2), np.float32) for _ in range(2))
            self._cos[:, :half], self._sin[:, :half] = np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64))
        return self._cos[positions], self._sin[positions]

    def _tapped(self, states: npt.NDArray[np.float32], taps: Sequence[int]) -> Tensor | None:
        """Turned back, and normed where the tap is behind the final norm."""
        if not taps:
            return None
        hidden = self.config.hidden_size
        rotation = stream_rotation(hidden).float().t()
        out = rotated(torch.from_numpy(states)[..., :hidden], rotation)
        if self.config.layers in taps:
            weight = torch.from_numpy(np.asarray(self._arrays["final_norm"]))
            last = list(taps).index(self.config.layers)
            out[last] = torch.nn.functional.rms_norm(out[last], weight.shape, weight, self.config.rms_norm_eps)
        return out


class _Head:
    """What the LM head reads and writes."""

    def __init__(self, rows: int, hidden: int, threads: int, keys: Keys) -> None:
        self.bytes, self.scales = np.empty((rows, hidden), np.uint8), np.empty(rows, np.float32)
        self._heats = np.array(keys.temperatures, np.float32)
        self._seeds = np.array(keys.seeds, np.uint64)
        self._positions = np.array(keys.positions, np.int64)
        self._best, self.tokens = np.empty((threads, rows), np.float32), np.empty((threads, rows), np.int64)

    def fields(self) -> dict[str, int]:
        """Of a `Job`."""
        return {
            "head_count": len(self.scales),
            "head_bytes": _at(self.bytes),
            "head_scales": _at(self.scales),
            "heats": _at(self._heats),
            "seeds": _at(self._seeds),
            "positions": _at(self._positions),
            "best": _at(self._best),
            "tokens": _at(self.tokens),
        }


class _Tables:
    """Numbers by which the kernels find what belongs to whom."""

    def __init__(self, parts: Sequence[Part], counts: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        self.tokens = np.array([token for part in parts for token in part.tokens], np.int64)
        fed = [len(part.tokens) for part in parts]
        before = np.repeat(np.array([part.before for part in parts], np.int64), fed)
        self._counts = np.array([count for each in counts for count in each], np.int32)
        self.positions = before + self._counts - 1
        row = np.arange(starts[-1]) - np.repeat(np.array(starts[:-1]), fed)
        self.slots = (before + row).astype(np.int32)
        self.pages = np.repeat(np.array([_at(part.pages.addresses) for part in parts], np.int64), fed)
        self.tile_rows = 8 if starts[-1] <= _FEW_ROWS else 16
        self.tiles = np.array(
            [
                (index, first, min(first + self.tile_rows, count))
                for index, count in enumerate(fed)
                for first in range(0, count, self.tile_rows)
            ],
            np.int32,
        )
        self._own = [_own(part) for part in parts]
        self.parts = np.array(
            [
                (start, _at(part.pages.addresses), part.before, *_place(own), _at(self._counts) + 4 * start)
                for part, start, own in zip(parts, starts, self._own, strict=False)
            ],
            np.int64,
        )


def _own(part: Part) -> npt.NDArray[np.int32] | None:
    """[rows, most] which rows of the part each row sees."""
    if part.own is None:
        return None
    own = np.zeros((len(part.own), max(len(rows) for rows in part.own)), np.int32)
    for row, seen in enumerate(part.own):
        own[row, : len(seen)] = seen
    return own


def _place(own: npt.NDArray[np.int32] | None) -> tuple[int, int]:
    """Address and stride of a row in bytes; zeros for a chain."""
    return (0, 0) if own is None else (_at(own), own.strides[0])


class _Room:
    """Buffers for one forward, which grow with what is asked for."""

    def __init__(self, model: Model, threads: int) -> None:
        self._model, self._threads = model, threads
        self._rows = self._positions = self._outputs = 0
        self.x = np.empty((0, model.hidden), np.float32)
        self.job: Job = Job(*[0] * len(Job._fields))

    def of(self, rows: int, positions: int, tile_rows: int) -> "_Room":
        """With room for so many rows, and for scores of tiles over so many positions."""
        pages = -(-positions // PAGE)
        if rows > self._rows or pages > self._positions or tile_rows > self._outputs:
            self._rows, self._positions = max(rows, self._rows, _FEW_ROWS), max(2 * pages, self._positions)
            self._outputs = max(tile_rows, self._outputs)
            self._make()
        return self

    def _make(self) -> None:
        model, rows = self._model, self._rows
        width, outputs = model.heads * model.dim, self._outputs * (model.heads // model.kv_heads)
        score_stride = 4 * (self._positions * PAGE + 16)  # no multiple of 4 kB, or rows would share places in the cache
        attention = 8 * outputs * model.dim + 4 * (outputs + rows + _LINE) + outputs * score_stride
        scratch = max(attention, 8 * GROUP_ROWS * max(model.dim, CHUNK)) + _LINE
        scratch = -(-scratch // _LINE) * _LINE
        self.x = np.empty((rows, model.hidden), np.float32)
        byte_stride = max(width, model.hidden, model.inner) + _LINE
        self._kept = {
            "x": self.x,
            "bytes": np.empty((rows, byte_stride), np.uint8),
            "row_scales": np.empty(rows, np.float32),
            "queries": np.empty((rows, width), np.float32),
            "mixed": np.empty((rows, width), np.float32),
            "inner": np.empty((rows, model.inner), np.float32),
            "scratch": np.empty((self._threads, scratch), np.uint8),
        }
        self.job = self.job._replace(
            byte_stride=byte_stride,
            scratch_stride=scratch,
            score_stride=score_stride,
            **{name: _at(array) for name, array in self._kept.items()},
        )


def _addresses(config: ModelConfig, arrays: Arrays) -> Longs:
    """[matrices, scales, offsets, biases] of each matrix [4, 4 layers + 1]."""
    hidden, inner = padded(config.hidden_size), padded(config.intermediate_size)
    width, dim = config.heads * head_room(config), head_room(config)
    layer = [(width + 2 * config.kv_heads * dim, hidden), (hidden, width), (2 * inner, hidden), (hidden, inner)]
    shapes = [*layer * config.layers, (padded(config.vocab_size), hidden)]
    sizes = list(accumulate((outputs * inputs for outputs, inputs in shapes), initial=0))
    firsts = list(accumulate((4 * outputs for outputs, _ in shapes), initial=0))
    assert len(shapes) == MATRICES * config.layers + 1
    assert sizes[-1] == arrays["matrices"].size
    names = ["scales", "offsets", *(["biases"] if arrays["biases"].size else [])]
    table = np.zeros((4, len(shapes)), np.int64)
    table[0] = _at(arrays["matrices"]) + np.array(sizes[:-1])
    for index, name in enumerate(names, 1):
        table[index] = _at(arrays[name]) + np.array(firsts[:-1])
    return table


def _model(config: ModelConfig, arrays: Arrays, tables: Longs) -> Model:
    matrices, scales, offsets, biases = (_at(row) for row in tables)
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
        qk_norms=_at(arrays["qk_norms"]) if config.qk_norm else 0,
        eps=config.rms_norm_eps,
    )


def _at(array: npt.NDArray[Any]) -> int:
    """Address of an array's numbers, which must outlive its use."""
    return int(array.__array_interface__["data"][0])
