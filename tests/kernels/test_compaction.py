"""Rows moved in place equal rows moved through a copy."""

import pytest
import torch

from kernels.gpu.compaction import Move, compact
from tests.kernels.ragged_data import DEVICE


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2, 3, 7], [1, 2, 3, 4], [5], []])
@pytest.mark.parametrize("shape", [(3,), (2, 1100)])
def test_rows_of_every_plane(rows: list[int], shape: tuple[int, ...]) -> None:
    """Rows that overlap their places are read before they are written over; others stay as they were."""
    table = torch.randn(2, 14, *shape, device=DEVICE)
    want = table.clone()
    want[:, 4 : 4 + len(rows)] = table[:, [4 + row for row in rows]]
    compact([Move(table, 4, rows)])
    assert torch.equal(table, want)


def test_a_table_without_planes() -> None:
    """The hidden states' table where nothing is tapped has no row whose size could be asked for."""
    compact([Move(torch.empty(0, 14, 3, device=DEVICE), 4, [1, 2])])


def test_tables_of_several_sequences_and_shapes() -> None:
    """Capacities differ, and so do the moved rows, the planes, the widths, and whether a table has planes at all."""
    torch.manual_seed(0)
    shapes, moved = ((2, 14, 3), (2, 40, 3), (5, 14, 7), (0, 14, 7)), ([1, 4], [0, 2, 3, 7], [3], [2])
    tables = [torch.randn(shape, device=DEVICE) for shape in shapes]
    want = [table.clone() for table in tables]
    for table, before, start, rows in zip(want, tables, range(4), moved, strict=True):
        table[:, start : start + len(rows)] = before[:, [start + row for row in rows]]
    compact([Move(*each) for each in zip(tables, range(4), moved, strict=True)])
    assert all(torch.equal(*pair) for pair in zip(tables, want, strict=True))
