"""The rows of an adapter's factors in int8 and in 4 bits, and the adapter of some rank that loses least by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from decoding.checkpoints.adapters.adapter import Adapter, Factors, factorise
from decoding.checkpoints.adapters.int4 import GROUP, quantised, restored
from decoding.checkpoints.arrays import Array, Floats
from decoding.errors import UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ("", "_scale", "_int4", "_int4_scale")  # of a factor's name; the last two only where rows take 4 bits
SWEEPS = 4


def stored_rows(rows: Tensor, fine: int | None) -> dict[str, Tensor]:
    """Rows as they are stored, by the end of their name: the first `fine` in int8, the others in 4 bits; None: all in int8.

    Raises UnsupportedModel for rows that cannot be divided into groups of 4 bits.
    """
    if fine is not None and rows.shape[1] % GROUP:
        raise UnsupportedModel(f"rows of {rows.shape[1]} numbers cannot take 4 bits: keep all components in int8")
    first = rows if fine is None else rows[:fine]
    stored = dict(zip(PARTS[:2], _int8(first), strict=True))
    if fine is None:
        return stored
    return stored | dict(zip(PARTS[2:], quantised(rows[fine:].cpu().contiguous()), strict=True))


def restored_rows(stored: Mapping[str, Array], name: str) -> Floats:
    """The rows of a factor in fp32."""
    int8, scale, codes, coarse = (stored.get(name + part) for part in PARTS)
    assert int8 is not None and scale is not None, name
    rows: Floats = int8.astype(np.float32) * scale[:, None]
    return rows if codes is None or coarse is None else np.concatenate([rows, restored(codes, coarse)])


def _int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """int8 rows, rounded to nearest, and their scales; a row of zeros has scale 0."""
    import torch

    rows = rows.detach().float().cpu()
    scale = rows.abs().amax(1) / 127
    steps = rows / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    return steps.round().to(torch.int8).contiguous(), scale


def compressed(adapter: Adapter, rank: int, fine: int | None = None) -> Adapter:
    """The adapter of `rank`, its strongest `fine` components in int8 and the others in 4 bits, that is nearest to this one.

    Without `fine`, all are in int8.

    Each factor is fitted in turn to what rounding made of the other, by least squares; what `write_adapter` then rounds is
    on the grid already.
    """
    factors = {module: _fitted(adapter.difference(module), rank, fine) for module in adapter.factors}
    return Adapter(factors, rank, float(rank), adapter.about)


def _fitted(difference: Tensor, rank: int, fine: int | None) -> Factors:
    a = _rounded(factorise({"": difference}, rank)[""].a, fine)
    best, least = Factors(a, a.new_zeros(len(difference), rank)), float("inf")
    for _ in range(SWEEPS):
        b = _rounded(_solved(a.T, difference.T), fine).T
        a = _rounded(_solved(b, difference), fine)
        error = float((difference - b @ a).square().sum())
        if error < least:
            best, least = Factors(a.contiguous(), b.contiguous()), error
    return best


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    """X that makes |matrix X - right| least."""
    import torch

    solution: Tensor = torch.linalg.lstsq(matrix.double(), right.double()).solution
    return solution.float()


def _rounded(rows: Tensor, fine: int | None) -> Tensor:
    import torch

    stored = {part: tensor.numpy() for part, tensor in stored_rows(rows, fine).items()}
    return torch.from_numpy(restored_rows(stored, ""))
