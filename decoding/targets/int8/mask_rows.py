"""What mask tokens add to an int8 model on a processor, as its kernels read it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.adapters.mask_adapter import OF_MASKS, OF_TEXT, Ahead, MaskAdapter
from decoding.checkpoints.model_config import ModelConfig
from decoding.engine.sampling.numpy_choice import Floats
from decoding.targets.int8.buffers import address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.packed_model import padded
from decoding.targets.int8.rotation import rotated, stream_rotation
from kernels.cpu.job import Model, ahead_room, aligned, aligned_copy, pack, table_of

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
        self._tokens = ahead.tokens
        self._table = table_of(model._replace(mask_rank=rank, mask_layers=address(self._layers)))
        self._room = aligned(ahead_room(rank, model.hidden), np.uint8)
        self._run = compiled("ahead:ahead_rows")

    def apply(self, rows: Bytes, scales: Floats, heads: Sequence[tuple[bool, int]]) -> None:
        """Turn quantized rows into those for tokens ahead. heads: of each row, whether it is a mask's, and how many tokens; 0:
        it stays what it is.
        """
        kinds = [count and (OF_MASKS if is_mask else OF_TEXT) * self._tokens + count for is_mask, count in heads]
        which = np.array(kinds, np.int32) - np.int32(1)
        places = [address(each) for each in (self._table, rows, scales, which)]
        self._run(*places, len(rows), address(self._room))


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
