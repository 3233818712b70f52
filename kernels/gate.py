"""silu(gate) * up, from the two halves of one product."""

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.launch import on_triton

_COLUMNS = 1024


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [rows, inner] of gate_up [rows, 2 * inner], contiguous: the gates first."""
    if not on_triton(gate_up):
        return gated_reference(gate_up)
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, inner)
    _gated[(rows, triton.cdiv(inner, _COLUMNS))](gate_up, out, inner, COLUMNS=_COLUMNS)
    return out


def gated_reference(gate_up: Tensor) -> Tensor:
    """The same with two operators of torch."""
    gate, up = gate_up.chunk(2, 1)
    return functional.silu(gate) * up


@triton.jit
def _gated(gate_up_ptr, out_ptr, inner, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per block of columns of a row."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < inner
    at = row * 2 * inner + column
    gate = tl.load(gate_up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + at + inner, mask=inside, other=0.0)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * inner + column, out.to(out_ptr.dtype.element_ty), mask=inside)
