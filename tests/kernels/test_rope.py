"""The fused norm, rotation and store against torch's operators."""

import pytest
import torch

from kernels.gpu.rope import rotate_and_store, rotate_and_store_reference
from tests.kernels.ragged_data import DEVICE, mixed_batch

LAYERS, LAYER, HEADS, KV_HEADS, DIM = 2, 1, 3, 1, 10


@pytest.mark.parametrize("normed", [False, True])
def test_queries_and_what_the_tables_hold(normed: bool) -> None:
    """Nothing but the rows' own slots changes, in the one layer; rows that belong to no sequence write nowhere."""
    torch.manual_seed(0)
    ragged = mixed_batch(2 * LAYERS * KV_HEADS, DIM)
    used = int(ragged.count.sum())
    qkv = torch.randn(ragged.rows, HEADS + 2 * KV_HEADS, DIM, device=DEVICE)
    norm = torch.randn(HEADS + KV_HEADS, DIM, device=DEVICE) if normed else None
    cos, sin = torch.randn(2, 160, DIM, device=DEVICE)
    before = [part.table.clone() for part in ragged.parts]
    want = rotate_and_store_reference(qkv, norm, cos, sin, ragged, LAYER, KV_HEADS, 1e-2)
    stored = [part.table.clone() for part in ragged.parts]
    for part, table in zip(ragged.parts, before, strict=True):
        part.table.copy_(table)
    got = rotate_and_store(qkv, norm, cos, sin, ragged, LAYER, KV_HEADS, 1e-2)
    torch.testing.assert_close(got[:used], want[:used], rtol=1e-5, atol=1e-5)
    for part, table, old in zip(ragged.parts, stored, before, strict=True):
        torch.testing.assert_close(part.table, table, rtol=1e-5, atol=1e-5)
        assert not torch.equal(part.table, old)
