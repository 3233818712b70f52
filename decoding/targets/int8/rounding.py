"""Weights in 8 bits, after a rotation that removes outliers.

An orthogonal rotation of a model's weights, which removes outlier columns from its activations (QuaRot, arXiv 2404.00456).

A few large numbers in a row leave few of the 8 bits to the others. An orthogonal matrix whose entries have similar magnitudes
spreads them; here it is the discrete cosine transform's, which exists in every size. The residual stream and the heads' values
are multiplied by it once: the weights that write and read them are rotated, after the norms' weights have been folded into
them. Up to rounding, the model stays the same; its input is rotated before the first layer and rotated back after the last.

Weights in 8 bits, and the rotation of a model's weights (`decoding.targets.int8.rounding`), in numpy.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.arrays import Floats, bfloat16, floats
from decoding.checkpoints.model_config import ModelConfig
from decoding.targets.int8.buffers import address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.packed_model import padded

_WIDEST = 192  # most columns of the stream that are rotated together: more takes longer to load and gains nothing


def cosines(size: int) -> npt.NDArray[np.float64]:
    """The orthogonal matrix [size, size] of the discrete cosine transform, in fp64."""
    column = np.arange(size, dtype=np.float64)
    matrix: npt.NDArray[np.float64] = np.cos(math.pi / size * np.outer(column + 0.5, column)) * math.sqrt(2 / size)
    matrix[:, 0] /= math.sqrt(2)
    return matrix


def stream_rotation(hidden: int) -> npt.NDArray[np.float64]:
    """The rotation of a residual stream of that width, block by block; its transpose rotates back."""
    return cosines(max(size for size in range(1, min(hidden, _WIDEST) + 1) if hidden % size == 0))


def rotated(x: Floats, rotation: Floats) -> Floats:
    """x [..., columns], every `len(rotation)` columns multiplied by `rotation`."""
    return (x.reshape(-1, len(rotation)) @ rotation).reshape(x.shape)


def padded_matrix(rotation: Floats) -> Floats:
    """[size, padded size], as kernels multiply with it."""
    matrix = np.zeros((len(rotation), padded(len(rotation))), np.float32)
    matrix[:, : len(rotation)] = rotation
    return matrix


class KernelRotation:
    """`rotated` by a kernel, for every forward: on one thread, and in an order that does not depend on the number of rows.

    numpy's BLAS would do it on threads of its own, which keep a processor busy for 100 ms after each product.
    """

    def __init__(self, rotation: Floats) -> None:
        self._size, self._matrix = len(rotation), padded_matrix(rotation)
        self._run = compiled("weighted_sums:rows_times")

    def __call__(self, x: Floats) -> Floats:
        """x [..., columns], every `len(rotation)` columns multiplied by the rotation."""
        rows = np.ascontiguousarray(x, np.float32).reshape(-1, self._size)
        out = np.empty((len(rows), self._matrix.shape[1]), np.float32)
        self._run(address(rows), len(rows), address(self._matrix), self._size, self._matrix.shape[1], address(out))
        return out[:, : self._size].reshape(x.shape)


HEAD = "lm_head.weight"
LEVELS = 127

_NORM_BEFORE = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "input_layernorm") | dict.fromkeys(
    ("gate_proj", "up_proj"), "post_attention_layernorm"
)


def rounded(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Steps int8 [out, in], at most 127 up and down in every row, and scales fp32 [out] of values that bf16 can hold: the
    weight is steps * scale[:, None]. Steps are chosen for the scale as rounded to bf16."""
    scale = np.maximum(np.abs(weight).max(1) / np.float32(LEVELS), np.finfo(np.float32).tiny)
    scale = floats(bfloat16(scale))
    return np.rint(weight / scale[:, None]).clip(-LEVELS, LEVELS).astype(np.int8), scale


def rotated_layers(config: ModelConfig, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Floats]]:
    """Arrays or tensors with transformers' names, in fp32, those of the layers rotated; norms whose weights were folded are
    ones. Raises KeyError or ValueError where weights do not match the configuration."""
    stored = dict(weights)
    stream = stream_rotation(config.hidden_size).astype(np.float32)
    values = cosines(config.head_dim).astype(np.float32)
    for name, weight in stored.items():
        *before, module, kind = name.split(".")
        array = floats(weight)
        if before[:2] != ["model", "layers"]:
            yield name, array
            continue
        if (norm := _NORM_BEFORE.get(module)) and kind == "weight":
            array = rotated(array * floats(stored[".".join([*before[:3], norm, kind])]), stream)
        if module == "v_proj":
            array = _rows_rotated(array, values)
        elif module == "o_proj" and kind == "weight":
            array = rotated(array, values)
        if module in ("o_proj", "down_proj"):
            array = _rows_rotated(array, stream)
        yield name, np.ones_like(array) if module in _NORM_BEFORE.values() else array


def _rows_rotated(array: Floats, rotation: Floats) -> Floats:
    """A weight [out, in] or a bias [out] whose output is rotated."""
    out: Floats = (rotation.T @ array.reshape(-1, len(rotation), array[0].size)).reshape(array.shape)
    return out
