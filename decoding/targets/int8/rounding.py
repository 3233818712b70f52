"""Weights in 8 bits, and the rotation of a model's weights (`decoding.targets.int8.rotation`), in numpy."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.arrays import Floats, bfloat16, floats
from decoding.checkpoints.model_config import ModelConfig
from decoding.targets.int8.rotation import cosines, rotated, stream_rotation

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
