"""Moves the accepted rows of a table up to the committed ones, in place and in all planes at once."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import on_triton, padded

_MOST_COLUMNS = 1024  # of a program


def compact_rows(table: Tensor, start: int, rows: Sequence[int]) -> None:
    """Move row `start + rows[i]` of table [planes, capacity, ...], contiguous, to `start + i`. `rows` must ascend.

    Rows that are in place already are not touched, so a chain costs nothing.
    """
    placed = next((i for i, row in enumerate(rows) if row != i), len(rows))
    if placed < len(rows):
        source = torch.tensor(rows[placed:], device=table.device) + start
        move = _move if on_triton(table) else compact_rows_reference
        move(table, start + placed, source)


def _move(table: Tensor, start: int, source: Tensor) -> None:
    size = table[0, 0].numel()
    columns = min(_MOST_COLUMNS, padded(size))
    grid = len(table), triton.cdiv(size, columns)
    _compact[grid](table, source, start, len(source), table.stride(0), SIZE=size, COLUMNS=columns)


def compact_rows_reference(table: Tensor, start: int, source: Tensor) -> None:
    """Move rows `source` [count] of all planes to `start` and the rows after it, through a copy."""
    table[:, start : start + len(source)] = table.index_select(1, source)


@triton.jit(do_not_specialize=["start", "count"])
def _compact(  # type: ignore[no-untyped-def]
    table_ptr, source_ptr, start, count, plane_stride, SIZE: tl.constexpr, COLUMNS: tl.constexpr
):
    """One program per block of columns of a plane.

    A row is read before it is overwritten, because rows only move up and each column stays with its thread.
    """
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    plane_ptr = table_ptr + tl.program_id(0).to(tl.int64) * plane_stride + column
    for index in range(count):
        moved = tl.load(plane_ptr + tl.load(source_ptr + index) * SIZE, mask=column < SIZE)
        tl.store(plane_ptr + (start + index).to(tl.int64) * SIZE, moved, mask=column < SIZE)
