"""Weights of 4 or 8 bits in one form, whatever format they were published in, and their products with few tokens.

The product reads the weight packed: half or a quarter of the bytes of bf16. A program computes some outputs for up to 64 rows,
16 at a time by the same instructions: each weight is unpacked once for all of them. The numbers less their zero points are
exact in bf16, and the sum of a tile of columns is multiplied by the scale in fp32. Tiles are added up in the order of the
columns, and a tile depends on the weight alone. So a row has one order of summation, however many rows there are. The reference
is in plain torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 32  # columns: of 4 bits, 16 bytes hold so many. Groups are whole blocks
_HALF = BLOCK // 2
_ROWS_AT_ONCE = 1024  # of a weight that torch multiplies with: they are in memory as fp64


@dataclass(frozen=True, slots=True)
class LowBit:
    """A weight [rows, columns] = (number - zero) * scale, with a zero point and a scale for each row and group of columns.

    numbers: FP8 (e4m3) or uint8 [rows, columns]; of 4 bits uint8 [rows, 16 * blocks], where byte i of a block of 32 columns
    holds column i in its lower bits and column 16 + i in its upper ones. scale: [rows, groups]. zero: uint8 [rows, groups],
    None for FP8. group: columns of a group. order: int64 [columns], the inputs that the columns are multiplied with where they
    were put in order by their groups; None: their own.
    """

    numbers: Tensor
    scale: Tensor
    zero: Tensor | None
    bits: int
    columns: int
    group: int
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.numbers), self.columns

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(part.nbytes for part in (self.numbers, self.scale, self.zero, self.order) if part is not None)

    def to(self, device: torch.device) -> "LowBit":
        """The same on a device."""
        zero, order = (None if part is None else part.to(device) for part in (self.zero, self.order))
        return replace(self, numbers=self.numbers.to(device), scale=self.scale.to(device), zero=zero, order=order)

    def rows(self, start: int, end: int) -> "LowBit":
        """Some of its rows."""
        zero = None if self.zero is None else self.zero[start:end]
        return replace(self, numbers=self.numbers[start:end], scale=self.scale[start:end], zero=zero)

    def dequantised(self) -> Tensor:
        """The weight in fp32, its columns in the order of the inputs."""
        group = torch.arange(self.columns, device=self.numbers.device) // self.group
        numbers = self._unpacked().float()
        if self.zero is not None:
            numbers -= self.zero.float()[:, group]
        weight = numbers * self.scale.float()[:, group]
        return weight if self.order is None else weight[:, self.order.argsort()]

    def _unpacked(self) -> Tensor:
        if self.bits == 8:
            return self.numbers
        blocks = self.numbers.view(len(self.numbers), -1, _HALF)
        return torch.stack([blocks & 15, blocks >> 4], 2).flatten(1)[:, : self.columns]


def packed(numbers: Tensor, scale: Tensor, zero: Tensor | None, group: Tensor, bits: int) -> LowBit:
    """numbers [rows, columns], scale and zero as in `LowBit`; group int64 [columns]: the group of each column.

    bits: fewer than 4 take 4. Raises ValueError where groups are not of one size, or not of whole blocks.
    """
    columns, size = numbers.shape[1], int((group == 0).sum())
    order = group.argsort(stable=True)
    if not torch.equal(group[order], torch.arange(columns) // size):
        raise ValueError("its groups of columns are not of one size")
    if scale.shape[1] > 1 and size % BLOCK:
        raise ValueError(f"groups of {size} columns cannot be kept packed, only multiples of {BLOCK} and whole rows")
    is_in_place = torch.equal(order, torch.arange(columns))
    numbers = numbers if is_in_place else numbers[:, order]
    stored = _in_nibbles(numbers) if bits <= 4 else numbers.contiguous()
    zero = None if zero is None else zero.contiguous()
    return LowBit(stored, scale.contiguous(), zero, max(4, bits), columns, size, None if is_in_place else order)


def _in_nibbles(numbers: Tensor) -> Tensor:
    blocks = functional.pad(numbers, (0, -numbers.shape[1] % BLOCK)).view(len(numbers), -1, 2, _HALF)
    return (blocks[:, :, 0] | blocks[:, :, 1] << 4).flatten(1)


def joined(weights: Sequence[LowBit]) -> LowBit | None:
    """Weights below one another; None where their forms differ."""
    first = weights[0]
    if any(_form(each) != _form(first) or not _same(each.order, first.order) for each in weights[1:]):
        return None
    numbers, scale = torch.cat([each.numbers for each in weights]), torch.cat([each.scale for each in weights])
    zeros = [each.zero for each in weights if each.zero is not None]
    return replace(first, numbers=numbers, scale=scale, zero=torch.cat(zeros) if zeros else None)


def _form(weight: LowBit) -> tuple[object, ...]:
    return weight.bits, weight.columns, weight.group, weight.numbers.dtype, weight.scale.dtype


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def low_bit_reference(x: Tensor, weight: LowBit, bias: Tensor | None = None) -> Tensor:
    """x [rows, columns] times the weight's transpose, and the bias, in fp64 and then rounded to x's type.

    So a row's result, once rounded, does not depend on the other rows.
    """
    starts, wide = range(0, len(weight.numbers), _ROWS_AT_ONCE), x.double()
    parts = (weight.rows(start, start + _ROWS_AT_ONCE).dequantised() for start in starts)
    out = torch.cat([wide @ part.double().t() for part in parts], 1)
    return (out if bias is None else out + bias.double()).to(x.dtype)
