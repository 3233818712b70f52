"""Rows of keys and values in FP8 (e4m3), each with a scale of its own, so that a row's bytes depend on that row alone.

Scales are powers of two, as in the MX formats of the Open Compute Project: they cost no precision, and do not carry the last
bits of a sum into the bytes.

A table of bytes [planes, capacity, dim] holds the scales in planes behind those of the rows, at the place of their rows:
whoever moves, copies or grows the rows of a table takes the scales along. `scales_at` is the first of these planes; 0 means
that the table holds numbers of the model's type, and no scales.
"""

import torch
from torch import Tensor

_LARGEST = 448.0  # in e4m3
LEAST_SCALE = 1e-30  # of a row of zeros
PER_LARGEST = 1 / _LARGEST
EXPONENT = 0x7F800000  # of a number in fp32
UP = 0x7FFFFF  # added before the mantissa is cut off, this leads to the next power of two


def scale_planes(planes: int, dim: int) -> int:
    """How many planes hold the scales, which are in fp32, of so many planes of rows."""
    return -(-planes * 4 // dim)


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [..., dim] in FP8, and their scales [..., 1] in fp32: the least with which FP8 can hold the row's largest number."""
    wide = rows.float()
    least = (wide.abs().amax(-1, keepdim=True) * PER_LARGEST).clamp_min(LEAST_SCALE)
    scale = ((least.view(torch.int32) + UP) & EXPONENT).view(torch.float32)
    return (wide / scale).to(torch.float8_e4m3fn), scale


def write_rows(table: Tensor, planes: range, slots: slice, rows: Tensor, scales_at: int) -> None:
    """Put rows [planes, slots, dim] into their place of a table."""
    place = slice(planes.start, planes.stop)
    if not scales_at:
        table[place, slots] = rows
        return
    small, scale = rounded(rows)
    table[place, slots] = small.view(torch.uint8)
    plane, at = _places(table, planes)
    table[scales_at:].view(torch.float32)[plane, slots, at] = scale[..., 0]


def read_rows(table: Tensor, planes: range, count: int, scales_at: int, dtype: torch.dtype) -> Tensor:
    """The first `count` rows of some planes [planes, count, dim], in this type."""
    rows = table[planes.start : planes.stop, :count]
    if not scales_at:
        return rows
    plane, at = _places(table, planes)
    scale = table[scales_at:].view(torch.float32)[plane, :count, at]
    return (rows.view(torch.float8_e4m3fn).float() * scale[..., None]).to(dtype)


def _places(table: Tensor, planes: range) -> tuple[Tensor, Tensor]:
    """The planes of scales, and the places in their rows, for these planes of rows."""
    number = torch.arange(planes.start, planes.stop, device=table.device)
    in_a_row = table.shape[2] // 4
    return number // in_a_row, number % in_a_row
