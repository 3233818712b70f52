"""The product of few tokens with a weight of 4 or 8 bits, which is read packed."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.low_bit import BLOCK, LowBit, low_bit_reference
from kernels.gpu.ragged import on_triton

_ROWS = tl.constexpr(16)  # the least of a matrix product


_HALF_BLOCK = tl.constexpr(BLOCK // 2)


_MOST_TILES = 4


_MOST_COLUMNS = 128  # of a tile


_FEW_OUTPUTS = 8192  # a matrix with fewer gets narrow programs, so that there are enough of them


def low_bit_product(x: Tensor, weight: LowBit, bias: Tensor | None = None) -> Tensor:
    """x [rows, columns], contiguous, times the weight's transpose, and the bias [outputs]: [rows, outputs] in x's type."""
    if not on_triton(x):
        return low_bit_reference(x, weight, bias)
    if weight.order is not None:
        x = x[:, weight.order]
    rows, outputs = len(x), len(weight.numbers)
    tiles = min(_MOST_TILES, triton.next_power_of_2(triton.cdiv(rows, _ROWS.value)))
    width = 16 if outputs < _FEW_OUTPUTS else 64
    out = x.new_empty(rows, outputs)
    _low_bit_product[(triton.cdiv(rows, tiles * _ROWS.value), triton.cdiv(outputs, width))](
        x,
        weight.numbers,
        weight.scale,
        weight.numbers if weight.zero is None else weight.zero,
        x if bias is None else bias,
        out,
        rows,
        outputs,
        COLUMNS=weight.columns,
        STRIDE=weight.numbers.shape[1],
        GROUP=weight.group,
        GROUPS=weight.scale.shape[1],
        PER_BYTE=8 // weight.bits,
        HAS_ZERO=weight.zero is not None,
        HAS_BIAS=bias is not None,
        TILES=tiles,
        WIDTH=width,
        TILE=_tile_columns(weight),
        num_warps=width // 8 if width < 32 else 4,
        num_stages=5,
    )
    return out


def _tile_columns(weight: LowBit) -> int:
    """A power of two; a tile lies within one group."""
    if weight.scale.shape[1] == 1:
        return _MOST_COLUMNS
    return min(_MOST_COLUMNS, weight.group & -weight.group)


@triton.jit
def _low_bit_product(  # type: ignore[no-untyped-def]
    x_ptr,
    numbers_ptr,
    scale_ptr,
    zero_ptr,
    bias_ptr,
    out_ptr,
    rows,
    outputs,
    COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_BYTE: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program per block of outputs and 16 * TILES rows; those of the same outputs run together and share what is read."""
    row = tl.program_id(0).to(tl.int64) * TILES * _ROWS + tl.arange(0, _ROWS)
    output = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    exists = output < outputs
    most: tl.constexpr = 15 if PER_BYTE == 2 else 255
    zeros = tl.zeros([_ROWS, WIDTH], tl.float32)
    sums = (zeros,)
    for _ in tl.static_range(TILES - 1):
        sums = sums + (zeros,)  # type: ignore[assignment]  # noqa: RUF005
    for start in range(0, COLUMNS, TILE):
        byte = start // PER_BYTE + tl.arange(0, TILE // PER_BYTE)
        inside = (byte < STRIDE)[:, None] & exists[None, :]
        stored = tl.load(numbers_ptr + output[None, :] * STRIDE + byte[:, None], mask=inside, other=0.0)
        group = output * GROUPS + start // GROUP
        scale = tl.load(scale_ptr + group, mask=exists, other=0.0).to(tl.float32)
        if HAS_ZERO:
            zero = tl.load(zero_ptr + group, mask=exists, other=0).to(tl.int32)
        column = byte // _HALF_BLOCK * (_HALF_BLOCK * PER_BYTE) + byte % _HALF_BLOCK
        column = tl.max_contiguous(tl.multiple_of(column, 16), 16)
        added = ()
        for tile in tl.static_range(TILES):
            here = row + tile * _ROWS
            part = zeros
            for half in tl.static_range(PER_BYTE):
                numbers = stored
                if HAS_ZERO:
                    numbers = ((stored.to(tl.int32) >> (4 * half)) & most) - zero[None, :]
                at = column + half * _HALF_BLOCK
                seen = (here < rows)[:, None] & (at < COLUMNS)[None, :]
                x = tl.load(x_ptr + here[:, None] * COLUMNS + at[None, :], mask=seen, other=0.0)
                part = tl.dot(x, numbers.to(x.dtype), part, input_precision="ieee")
            summed = tl.fma(part, tl.broadcast_to(scale[None, :], part.shape), sums[tile])
            added = added + (summed,)  # type: ignore[assignment]  # noqa: RUF005
        sums = added  # type: ignore[assignment]
    bias = tl.load(bias_ptr + output, mask=exists & HAS_BIAS, other=0.0).to(tl.float32)
    for tile in tl.static_range(TILES):
        here = row + tile * _ROWS
        out = (sums[tile] + bias[None, :]).to(out_ptr.dtype.element_ty)
        mask = (here < rows)[:, None] & exists[None, :]
        tl.store(out_ptr + here[:, None] * outputs + output[None, :], out, mask=mask)
