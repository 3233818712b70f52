"""Reads a quantised checkpoint's tensors as if it were plain: each module's weight by its usual name, dequantised or packed.

weight = (number - zero point) * scale, with a scale for each block:

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

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor

from decoding.checkpoints.quantisation import Layout, Scheme
from decoding.errors import UnsupportedModel
from kernels.gpu.low_bit import LowBit, packed

Parts = Mapping[str, Tensor]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each four bits, from the lowest


class Grouped(NamedTuple):
    """A weight [out, in] = (number - zero) * scale, with a zero point and a scale for each row and group of columns."""

    numbers: Tensor  # [out, in], unsigned integers or FP8
    zero: Tensor | None  # [out, groups], unsigned; None for FP8
    scale: Tensor  # [out, groups]
    group: Tensor  # [in], of each column


def dequantised(scheme: Scheme, parts: Parts) -> Tensor:
    """The weight [out, in] of a module in the type that the model was published to compute in.

    Raises KeyError for a missing part, ValueError for shapes that do not fit.
    """
    numbers, zero, scale, group = _grouped(scheme, parts)
    numbers = numbers.float()
    if zero is not None:
        numbers -= zero.float()[:, group]
    return (numbers * scale.float()[:, group]).to(getattr(torch, scheme.dtype)).contiguous()


def low_bit(scheme: Scheme, parts: Parts) -> LowBit:
    """The weight of a module, packed. Raises as `dequantised`, and ValueError where `kernels.gpu.low_bit` does."""
    numbers, zero, scale, group = _grouped(scheme, parts)
    if zero is None and numbers.dtype != torch.float8_e4m3fn:
        raise ValueError(f"weights of type {numbers.dtype} cannot be kept packed")
    if zero is None:
        return packed(numbers, scale, None, group, 8)
    return packed(numbers.to(torch.uint8), scale, zero.to(torch.uint8), group, scheme.bits)


def _grouped(scheme: Scheme, parts: Parts) -> Grouped:
    try:
        found = _LAYOUTS[scheme.layout](scheme, parts)
        shape = len(found.numbers), 1 + int(found.group.max())
        zero = None if found.zero is None else _spread(found.zero, shape)
        return Grouped(found.numbers, zero, _spread(found.scale, shape), found.group.expand(found.numbers.shape[1]))
    except (RuntimeError, IndexError) as error:
        raise ValueError(str(error).partition("\n")[0]) from error


def _spread(values: Tensor, shape: tuple[int, int]) -> Tensor:
    if values.numel() > 1 and values.shape != shape:
        raise ValueError(f"{list(values.shape)} zero points or scales where there should be {list(shape)}")
    return values.reshape(-1, 1).expand(shape) if values.numel() == 1 else values


def unpacked(words: Tensor, bits: int, axis: int) -> Tensor:
    """Numbers from int32 words [rows, columns] that each hold neighbours along the axis, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    numbers = (words.unsqueeze(axis + 1) >> shifts.reshape(-1, *[1] * (1 - axis))) & ((1 << bits) - 1)
    return numbers.flatten(axis, axis + 1)


def _scaled(scheme: Scheme, parts: Parts) -> Grouped:
    weight = parts["weight"]
    scale = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
    group = _groups(weight.shape[1], scheme.block[1])
    scale = _by_row(scale, scheme, len(weight))
    if weight.is_floating_point():
        return Grouped(weight, None, scale, group)
    zero = parts.get("weight_zero_point", torch.zeros(1, dtype=torch.int8))
    return Grouped(weight.short() + 128, _by_row(zero, scheme, len(weight)).short() + 128, scale, group)


def _by_row(values: Tensor, scheme: Scheme, rows: int) -> Tensor:
    """One value per block, as one per row and group of columns."""
    if values.numel() == 1:
        return values.reshape(1, 1)
    size = scheme.block[0] or rows
    return values.reshape(-(-rows // size), -1).repeat_interleave(size, 0)[:rows]


def _groups(columns: int, size: int | None) -> Tensor:
    return torch.arange(columns) // (size or columns)


def _packed(scheme: Scheme, parts: Parts) -> Grouped:
    rows, columns = parts["weight_shape"].tolist()
    half = 1 << (scheme.bits - 1)
    numbers = unpacked(parts["weight_packed"], scheme.bits, 1)[:, :columns]
    stored = parts.get("weight_zero_point", torch.zeros(1, dtype=torch.int8))
    is_packed = stored.dtype == torch.int32
    zero = unpacked(stored, scheme.bits, 0)[:rows] if is_packed else _by_row(stored, scheme, rows).short() + half
    group = parts["weight_g_idx"].long() if "weight_g_idx" in parts else _groups(columns, scheme.block[1])
    return Grouped(numbers, zero, parts["weight_scale"].reshape(rows, -1), group)


def _gptq_weights(scheme: Scheme, parts: Parts) -> Grouped:
    numbers = unpacked(parts["qweight"], scheme.bits, 0)
    zeros = (unpacked(parts["qzeros"], scheme.bits, 1) + scheme.zero_offset) & ((1 << scheme.bits) - 1)
    group = parts["g_idx"].long() if "g_idx" in parts else _groups(len(numbers), scheme.block[1])
    return Grouped(numbers.t(), zeros.t(), parts["scales"].t(), group)


def _awq_weights(scheme: Scheme, parts: Parts) -> Grouped:
    numbers, zeros = (_awq_columns(unpacked(parts[name], 4, 1)) for name in ("qweight", "qzeros"))
    return Grouped(numbers.t(), zeros.t(), parts["scales"].t(), _groups(len(numbers), scheme.block[1]))


def _awq_columns(numbers: Tensor) -> Tensor:
    """In the order of the outputs."""
    eights = numbers.view(len(numbers), -1, 8)
    ordered = torch.empty_like(eights)
    ordered[:, :, list(_AWQ_ORDER)] = eights
    return ordered.flatten(1)


_LAYOUTS: Mapping[Layout, Callable[[Scheme, Parts], Grouped]] = {
    "scaled": _scaled,
    "packed": _packed,
    "gptq": _gptq_weights,
    "awq": _awq_weights,
}


_FIRST = {"weight_packed", "qweight"}  # the part in whose place the weight comes
_PARTS = {
    *_FIRST,
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "qzeros",
    "scales",
    "g_idx",
}
_OF_ACTIVATIONS = {"input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale", "q_scale"}


Made = TypeVar("Made")


def read_quantised(
    files: tuple[Path, ...], scheme: Scheme, make: Callable[[Scheme, Parts], Made]
) -> Iterator[tuple[str, Tensor | Made]]:
    """Names and tensors of the safetensors files; of weights that were quantised, what `make` makes of their parts, which is
    `layouts.dequantised` or `layouts.low_bit`.

    A module's parts may be in several files. Raises UnsupportedModel where parts are missing or do not fit, and what
    safetensors raises.
    """
    if any(file.suffix != ".safetensors" for file in files):
        raise UnsupportedModel(f"{scheme.name} weights are read from safetensors files only, not from {files[0].name}")
    with ExitStack() as opened:
        stored = {
            name: tensors
            for tensors in (opened.enter_context(safe_open(file, framework="pt")) for file in files)
            for name in tensors.keys()  # noqa: SIM118  (no mapping: it has no __iter__)
        }
        for name, tensors in stored.items():
            module, _, part = name.rpartition(".")
            if part in _FIRST or (part == "weight" and _is_scaled(module, stored)):
                yield f"{module}.weight", _weight(scheme, module, stored, make)
            elif part not in _PARTS | _OF_ACTIVATIONS:
                yield name, tensors.get_tensor(name)


def _is_scaled(module: str, stored: dict[str, Any]) -> bool:
    return any(f"{module}.{part}" in stored for part in ("weight_scale", "weight_scale_inv"))


def _weight(scheme: Scheme, module: str, stored: dict[str, Any], make: Callable[[Scheme, Parts], Made]) -> Made:
    names = {part: f"{module}.{part}" for part in (*_PARTS, "weight") if f"{module}.{part}" in stored}
    parts = {part: stored[name].get_tensor(name) for part, name in names.items()}
    try:
        return make(scheme, parts)
    except KeyError as error:
        raise UnsupportedModel(f"{module} has no {error.args[0]}, which {scheme.name} weights need") from error
    except ValueError as error:
        raise UnsupportedModel(f"{module} does not fit its {scheme.name} configuration: {error}") from error
