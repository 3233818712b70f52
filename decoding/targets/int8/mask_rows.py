"""What mask tokens add to an int8 model on a processor, as its kernels read it."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.bigrams import TokenPairs
from decoding.checkpoints.mask_adapter import Ahead, MaskAdapter
from decoding.checkpoints.model_config import ModelConfig
from decoding.engine.sampler import Floats
from decoding.engine.target import Ranked, TextScores, TokenSet
from decoding.targets.int8.buffers import Longs, address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.packed_model import padded
from decoding.targets.int8.packing import rotated, stream_rotation
from kernels.cpu.job import (
    Model,
    TextTable,
    ahead_room,
    aligned,
    aligned_copy,
    pack,
    table_of,
    text_guesses_room,
)

Bytes = npt.NDArray[np.uint8]


class MaskRows:
    """A mask adapter as the kernels read it: rotated like the stream, padded, its layers in eight bits.

    Raises UnsupportedModel.
    """

    def __init__(self, config: ModelConfig, adapter: MaskAdapter) -> None:
        adapter.check_fits(config)
        self.embeddings = _as_stream(adapter.embeddings, config)
        self.rank, self.layers = _layers(adapter.down, adapter.up, config)


class AheadHeads:
    """The heads of a mask adapter for tokens after a row's own, on the rows that the LM head reads. model: of the forward."""

    def __init__(self, config: ModelConfig, ahead: Ahead, model: Model) -> None:
        down, up = (each.reshape(-1, *each.shape[2:]) for each in (ahead.down, ahead.up))
        rank, self._layers = _layers(down, up, config)
        self._heads = ahead.heads
        self._table = table_of(model._replace(mask_rank=rank, mask_layers=address(self._layers)))
        self._room = aligned(ahead_room(rank, model.hidden), np.uint8)
        self._run = compiled("forward:ahead_rows")

    def apply(self, rows: Bytes, scales: Floats, heads: Sequence[tuple[bool, int]]) -> None:
        """Turn quantized rows into those for tokens ahead. heads: see `Ahead.heads`; a row without one stays what it is."""
        which = np.array(self._heads(heads), np.int32)
        places = [address(each) for each in (self._table, rows, scales, which)]
        self._run(*places, len(rows), address(self._room))


class KernelPairs:
    """`PairScores` whose texts rank guesses on kernels."""

    def __init__(self, pairs: TokenPairs) -> None:
        self._pairs, self.ids, self.beginning = pairs, pairs.ids, pairs.beginning
        self._run = compiled("text_guesses:best_in_text")

    def in_text(self, text: Sequence[int]) -> "KernelTextScores":
        return KernelTextScores(self._pairs, text, self._run)


class KernelTextScores:
    """`TextScores` on kernels: `best` reads the text itself, so nothing is counted beforehand."""

    def __init__(self, pairs: TokenPairs, text: Sequence[int], run: Callable[..., None]) -> None:
        self._pairs, self._run = pairs, run
        self._weights = pairs.followers if text else None
        self._text, self._length = np.array(text, np.int32), len(text)
        self._tokens: TokenSet | None = None  # those that were asked about last, and how many were wanted
        self._count = 0
        self._logits: Floats | None = None  # those of the last call
        self._pairs_at: dict[int, int] = {}  # where the scores after a token are; 0: it has none

    def grow(self, text: Sequence[int]) -> None:
        if self._weights is None:
            return
        if len(text) > len(self._text):
            self._text = np.concatenate([self._text, np.empty(len(text), np.int32)])
            self._tokens = None  # the table has its old address
        self._text[self._length : len(text)] = text[self._length :]
        self._length = len(text)

    @cached_property
    def _in_numpy(self) -> TextScores:
        return self._pairs.in_text(self._text[: self._length].tolist())

    def corrected(self, logits: Floats, tail: tuple[int, int], tokens: Longs) -> Floats:
        self._in_numpy.grow(self._text[: self._length].tolist())
        return self._in_numpy.corrected(logits, tail, tokens)

    def best(self, logits: Floats, row: int, tail: tuple[int, int], tokens: TokenSet, count: int) -> Ranked:
        """See `TextScores.best`."""
        if tokens is not self._tokens or count != self._count:
            self._ask_about(tokens, count)
        if logits is not self._logits:
            self._logits, self._rows = logits, np.ascontiguousarray(logits)
            self._at = address(self._rows)
        before, last = tail
        if (pairs := self._pairs_at.get(last)) is None:
            known = self._pairs.scores_after(last)
            pairs = self._pairs_at[last] = 0 if known is None else address(known)
        at = self._at + 4 * row * len(tokens)
        self._run(self._places[0], at, pairs, self._length, before, last, len(self._best), *self._places[1:])
        return self._best.tolist(), self._scores.tolist()

    def _ask_about(self, tokens: TokenSet, count: int) -> None:
        """Lay out what the kernel reads and writes."""
        self._tokens, self._count = tokens, count
        among, weights = self._pairs.places(tokens.ids), 0 if self._weights is None else address(self._weights)
        text, common = address(self._text), len(self._pairs.ids)
        table = table_of(TextTable(address(tokens.ids), len(tokens), address(among), common, text, weights))
        self._best, self._scores = (np.empty(min(count, len(tokens)), kind) for kind in (np.int64, np.float32))
        room = aligned(text_guesses_room(len(tokens)), np.uint8)
        self._kept = table, self._best, self._scores, room, among
        self._places = [address(each) for each in self._kept[:4]]


def _layers(down: Floats, up: Floats, config: ModelConfig) -> tuple[int, Bytes]:
    """The padded rank of factors [layers, rank, hidden], and their bytes, layer after layer."""
    rank = padded(down.shape[1])
    more = [(0, rank - down.shape[1]), (0, 0)]
    both = zip(_as_stream(down, config), _as_stream(up, config), strict=True)
    layers = [_mask_layer(np.pad(first, more), np.pad(second, more).T) for first, second in both]
    return rank, aligned_copy(np.concatenate(layers))


def _as_stream(rows: Floats, config: ModelConfig) -> Floats:
    """Rows [..., hidden] rotated and padded like the stream."""
    pad = padded(config.hidden_size) - config.hidden_size
    rotation = stream_rotation(config.hidden_size).astype(np.float32)
    return np.pad(rotated(rows, rotation), [(0, 0)] * (rows.ndim - 1) + [(0, pad)])


def _mask_layer(*weights: Floats) -> npt.NDArray[np.uint8]:
    """The bytes of a layer's weights [outputs, inputs], their scales and their offsets (see `mask_layer_bytes`)."""
    scales = [np.maximum(np.abs(weight).max(1) / 127, 1e-30).astype(np.float32) for weight in weights]
    steps = [np.rint(weight / scale[:, None]).astype(np.int8) for weight, scale in zip(weights, scales, strict=True)]
    offsets = [128 * each.sum(1, dtype=np.int32) for each in steps]
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in (*map(pack, steps), *scales, *offsets)])
