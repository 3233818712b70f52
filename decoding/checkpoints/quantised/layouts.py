"""How quantised weights lie in files, and what they mean: weight = (number - zero point) * scale, with a scale for each block.

    layout    parts of a module                          numbers
    scaled    weight [out, in], weight_scale or          FP8 (e4m3) or int8, one each; `weight_scale_inv` is no inverse
              weight_scale_inv
    packed    weight_packed, weight_scale, weight_shape  int32 holds 32 / bits neighbours of a row, the lowest bits first;
                                                         unsigned, with half of the range added
    gptq      qweight, qzeros, scales, g_idx             [in, out]; int32 holds neighbours of a column; version 1 stores zero
                                                         points less one
    awq       qweight, qzeros, scales                    [in, out]; int32 holds eight neighbours of a row, in AWQ's order

Sources: the formats of compressed-tensors, AutoGPTQ and AutoAWQ, and DeepSeek-V3's notes on its FP8 weights.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from decoding.checkpoints.quantised.scheme import Layout, Scheme

Parts = Mapping[str, Tensor]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each four bits, from the lowest


def dequantised(scheme: Scheme, parts: Parts) -> Tensor:
    """The weight [out, in] of a module in fp32. Raises KeyError for a missing part, ValueError for shapes that do not fit."""
    try:
        return _LAYOUTS[scheme.layout](scheme, parts)
    except (RuntimeError, IndexError) as error:
        raise ValueError(str(error).partition("\n")[0]) from error


def spread(values: Tensor, block: tuple[int | None, int | None], shape: tuple[int, int]) -> Tensor:
    """One value per block [..] spread over all numbers [rows, columns]."""
    if values.numel() == 1:
        return values.reshape(1, 1).expand(shape)
    rows, columns = (size or whole for size, whole in zip(block, shape, strict=True))
    values = values.reshape(-(-shape[0] // rows), -(-shape[1] // columns))
    return values.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(columns, 1)[:, : shape[1]]


def unpacked(words: Tensor, bits: int, axis: int) -> Tensor:
    """Numbers from int32 words [rows, columns] that each hold neighbours along the axis, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    numbers = (words.unsqueeze(axis + 1) >> shifts.reshape(-1, *[1] * (1 - axis))) & ((1 << bits) - 1)
    return numbers.flatten(axis, axis + 1)


def _scaled(scheme: Scheme, parts: Parts) -> Tensor:
    weight = parts["weight"].float()
    shape = weight.shape[0], weight.shape[1]
    scale = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
    if "weight_zero_point" in parts:
        weight = weight - spread(parts["weight_zero_point"].float(), scheme.block, shape)
    return weight * spread(scale.float(), scheme.block, shape)


def _packed(scheme: Scheme, parts: Parts) -> Tensor:
    rows, columns = parts["weight_shape"].tolist()
    half = 1 << (scheme.bits - 1)
    numbers = unpacked(parts["weight_packed"], scheme.bits, 1)[:, :columns] - half
    scale = parts["weight_scale"].float().reshape(rows, -1)
    zero = parts.get("weight_zero_point", torch.zeros(1, dtype=torch.int8))
    if zero.dtype == torch.int32:  # packed, too
        zero = unpacked(zero, scheme.bits, 0)[:rows] - half
    if "weight_g_idx" in parts:
        group = parts["weight_g_idx"].long()
        return (numbers - zero.expand_as(scale)[:, group]) * scale[:, group]
    zeros, scales = (spread(each, scheme.block, (rows, columns)) for each in (zero, scale))
    return (numbers - zeros) * scales


def _gptq(scheme: Scheme, parts: Parts) -> Tensor:
    numbers = unpacked(parts["qweight"], scheme.bits, 0)
    zeros = (unpacked(parts["qzeros"], scheme.bits, 1) + scheme.zero_offset) & ((1 << scheme.bits) - 1)
    size = scheme.block[1] or len(numbers)
    group = parts["g_idx"].long() if "g_idx" in parts else torch.arange(len(numbers)) // size
    return ((numbers - zeros[group]) * parts["scales"].float()[group]).t()


def _awq(scheme: Scheme, parts: Parts) -> Tensor:
    numbers, zeros = (_awq_columns(unpacked(parts[name], 4, 1)) for name in ("qweight", "qzeros"))
    size = scheme.block[1] or len(numbers)
    group = torch.arange(len(numbers)) // size
    return ((numbers - zeros[group]) * parts["scales"].float()[group]).t()


def _awq_columns(numbers: Tensor) -> Tensor:
    """In the order of the outputs."""
    eights = numbers.view(len(numbers), -1, 8)
    ordered = torch.empty_like(eights)
    ordered[:, :, list(_AWQ_ORDER)] = eights
    return ordered.flatten(1)


_LAYOUTS: Mapping[Layout, Callable[[Scheme, Parts], Tensor]] = {
    "scaled": _scaled,
    "packed": _packed,
    "gptq": _gptq,
    "awq": _awq,
}
