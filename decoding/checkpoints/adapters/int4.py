"""Weights in 4 bits: groups of 32 along the input share one fp16 scale, so a weight takes 4.5 bits. For shipping, not for
arithmetic.

The codes are symmetric, as in GGUF's Q4_0, but of several scales each group takes the one with the least squared error, so its
extreme need not be represented exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from decoding.checkpoints.arrays import Array, Floats

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
