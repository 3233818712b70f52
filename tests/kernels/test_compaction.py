"""Rows moved in place equal rows moved through a copy."""

import pytest
import torch

from kernels.compaction import compact_rows
from tests.kernels.ragged_data import DEVICE


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2, 3, 7], [1, 2, 3, 4], [5], []])
@pytest.mark.parametrize("shape", [(3,), (2, 1100)])
def test_rows_of_every_plane(rows: list[int], shape: tuple[int, ...]) -> None:
    """Rows that overlap their places are read before they are written over; others stay as they were."""
    table = torch.randn(2, 14, *shape, device=DEVICE)
    want = table.clone()
    want[:, 4 : 4 + len(rows)] = table[:, [4 + row for row in rows]]
    compact_rows(table, 4, rows)
    assert torch.equal(table, want)
