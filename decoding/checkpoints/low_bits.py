"""Weights and rows of factors in 4 bits and in int8. For shipping, not for arithmetic.

In 4 bits, groups of 32 along the input share one fp16 scale, so a weight takes 4.5 bits. The codes are symmetric, as in GGUF's
Q4_0, but of several scales each group takes the one with the least squared error, so its extreme need not be represented
exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from decoding.checkpoints.arrays import Array, Floats
from decoding.errors import UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor


GROUP = 32
_INT4, _SCALE = ".int4", ".scale"
_STEPS_TO_EXTREME = (-9.0, -8.5, -8.0, -7.5, -7.0, 7.0)  # quotient of a group's extreme and its scale


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices [out, in] as `name.int4` uint8 [out, in / 2] and `name.scale` fp16 [out, in / 32]; all other tensors in fp16.

    A matrix whose width is no multiple of 32 is one of the others.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and tensor.shape[1] % GROUP == 0:
            out[name + _INT4], out[name + _SCALE] = quantised(tensor)
        else:
            out[name] = tensor.half()
    return out


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `packed` stored, in fp32. Raises KeyError where a scale is missing."""
    import torch

    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_INT4):
            plain = name.removesuffix(_INT4)
            out[plain] = torch.from_numpy(restored(tensor.numpy(), tensors[plain + _SCALE].numpy()))
        elif not (name.endswith(_SCALE) and name.removesuffix(_SCALE) + _INT4 in tensors):
            out[name] = tensor.float()
    return out


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """4-bit codes uint8 [out, in / 2] (low nibble first) and scales fp16 [out, in / 32] of weight [out, in]."""
    import torch

    groups = weight.detach().float().reshape(len(weight), -1, GROUP)
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    best, least = torch.zeros_like(extreme), torch.full_like(extreme, float("inf"))
    for steps in _STEPS_TO_EXTREME:
        scale = (extreme / steps).half().float()
        error = (_codes(groups, scale) * scale - groups).square().sum(2, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    codes = (_codes(groups, best) + 8).to(torch.uint8).reshape(len(weight), -1)
    return codes[:, 0::2] | codes[:, 1::2] << 4, best.squeeze(2).half()


def _codes(groups: Tensor, scale: Tensor) -> Tensor:
    return (groups / scale.where(scale != 0, 1.0)).round().clamp(-8, 7)


def restored(codes: Array, scale: Array) -> Floats:
    """The weight [out, in] in fp32."""
    steps = np.stack([codes & 15, codes >> 4], 2).astype(np.float32) - 8
    weight: Floats = (steps.reshape(*scale.shape, GROUP) * scale.astype(np.float32)[..., None]).reshape(len(codes), -1)
    return weight


PARTS = ("", "_scale", "_int4", "_int4_scale")  # of a factor's name; the last two only where rows take 4 bits


def stored_rows(rows: Tensor, fine: int | None) -> dict[str, Tensor]:
    """Rows as they are stored, by the end of their name: the first `fine` in int8, the others in 4 bits; None: all in int8.

    Raises UnsupportedModel for rows that cannot be divided into groups of 4 bits.
    """
    if fine is not None and rows.shape[1] % GROUP:
        raise UnsupportedModel(f"rows of {rows.shape[1]} numbers cannot take 4 bits: keep all components in int8")
    first = rows if fine is None else rows[:fine]
    stored = dict(zip(PARTS[:2], _int8(first), strict=True))
    if fine is None:
        return stored
    return stored | dict(zip(PARTS[2:], quantised(rows[fine:].cpu().contiguous()), strict=True))


def restored_rows(stored: Mapping[str, Array], name: str) -> Floats:
    """The rows of a factor in fp32."""
    int8, scale, codes, coarse = (stored.get(name + part) for part in PARTS)
    assert int8 is not None and scale is not None, name
    rows: Floats = int8.astype(np.float32) * scale[:, None]
    return rows if codes is None or coarse is None else np.concatenate([rows, restored(codes, coarse)])


def _int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """int8 rows, rounded to nearest, and their scales; a row of zeros has scale 0."""
    import torch

    rows = rows.detach().float().cpu()
    scale = rows.abs().amax(1) / 127
    steps = rows / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    return steps.round().to(torch.int8).contiguous(), scale
