"""Moves the accepted rows of tables up to the committed ones, in place."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.ragged import on_triton, padded, sent

_MOST_COLUMNS = 1024  # of a program


class Move(NamedTuple):
    """Row `start + rows[i]` of table [planes, capacity, ...], contiguous, goes to `start + i`. `rows` ascend."""

    table: Tensor
    start: int
    rows: Sequence[int]


def compact(moves: Sequence[Move]) -> None:
    """Make all moves, which are of different tables; one launch for all tables with as many planes and as wide rows.

    Rows that are in place already are not touched, so a chain costs nothing, and neither does a table without planes.
    """
    shaped = sorted((each for each in map(_out_of_place, moves) if each.rows and each.table.numel()), key=_shape)
    for _, group in groupby(shaped, _shape):
        alike = list(group)
        (_move if on_triton(alike[0].table) else compact_reference)(alike)


def compact_reference(moves: Iterable[Move]) -> None:
    """The same, table by table, through a copy."""
    for table, start, rows in moves:
        table[:, start : start + len(rows)] = table.index_select(1, sent([start + row for row in rows], table.device))


def _out_of_place(move: Move) -> Move:
    """Without the leading rows that lie where they belong."""
    placed = next((i for i, row in enumerate(move.rows) if row != i), len(move.rows))
    return Move(move.table, move.start + placed, [row - placed for row in move.rows[placed:]])


def _shape(move: Move) -> tuple[int, int]:
    """Planes, and numbers in a row."""
    return len(move.table), move.table[0, 0].numel()


def _move(moves: Sequence[Move]) -> None:
    planes, size = _shape(moves[0])
    firsts = accumulate((len(each.rows) for each in moves), initial=0)
    facts = [
        (table.data_ptr(), table.stride(0), start, first, len(rows))
        for (table, start, rows), first in zip(moves, firsts, strict=False)
    ]
    numbers = [number for each in facts for number in each] + [row for each in moves for row in each.rows]
    columns = min(_MOST_COLUMNS, padded(size))
    grid = planes, triton.cdiv(size, columns), len(moves)
    table = moves[0].table
    _compact[grid](table, sent(numbers, table.device), len(facts[0]) * len(facts), SIZE=size, COLUMNS=columns)


@triton.jit(do_not_specialize=["rows_at"])
def _compact(like_ptr, facts_ptr, rows_at, SIZE: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per sequence and block of columns of a plane. like_ptr: any of the tables, for its type.

    A row is read before it is overwritten, because rows only move up and each column stays with its thread.
    """
    facts_ptr_here = facts_ptr + tl.program_id(2) * 5
    table_ptr = tl.load(facts_ptr_here).to(like_ptr.dtype)
    start, count = tl.load(facts_ptr_here + 2), tl.load(facts_ptr_here + 4)
    source_ptr = facts_ptr + rows_at + tl.load(facts_ptr_here + 3)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    plane_ptr = table_ptr + tl.program_id(0).to(tl.int64) * tl.load(facts_ptr_here + 1) + start * SIZE + column
    for index in range(count):
        moved = tl.load(plane_ptr + tl.load(source_ptr + index) * SIZE, mask=column < SIZE)
        tl.store(plane_ptr + index * SIZE, moved, mask=column < SIZE)
