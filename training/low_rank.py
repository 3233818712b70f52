"""Low-rank adapters that training makes: of differences of weights, of two adapters, of more components, of fewer bits."""

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor

from decoding.checkpoints.adapter import Adapter, Factors
from decoding.checkpoints.quantisation import restored_rows, stored_rows

SWEEPS = 4


def grown(adapter: Adapter, rank: int, seed: int) -> Adapter:
    """The same change with components added until the rank is `rank`: A is drawn as for a new adapter, B is zero.

    The scale stays, so that the old components mean what they meant.
    """
    chance, more, factors = torch.Generator().manual_seed(seed), rank - adapter.rank, dict[str, Factors]()
    for module in sorted(adapter.factors):
        a, b = adapter.factors[module].a.float(), adapter.factors[module].b.float()
        bound = a.shape[1] ** -0.5
        drawn = torch.empty(more, a.shape[1]).uniform_(-bound, bound, generator=chance)
        factors[module] = Factors(torch.cat([a, drawn]), torch.cat([b, b.new_zeros(len(b), more)], 1))
    alpha = adapter.scale * (sqrt(rank) if adapter.rank_stabilised else rank)
    return Adapter(factors, rank, alpha, adapter.about, adapter.rank_stabilised)


def averaged(adapter: Adapter, other: Adapter) -> Adapter:
    """The mean of two adapters' changes, without loss: its rank is the sum of theirs. Averaged with what it was fine-tuned
    from, a model keeps more of what it could do before (WiSE-FT, arXiv 2109.01903). Raises ValueError if they change
    different modules.
    """
    if set(adapter.factors) != set(other.factors):
        raise ValueError("the adapters change different modules, so they have no mean")
    factors, rank = dict[str, Factors](), adapter.rank + other.rank
    for module in adapter.factors:
        pairs = [(each.factors[module], each.scale / 2) for each in (adapter, other)]
        a = torch.cat([one.a.float() for one, _ in pairs])
        factors[module] = Factors(a, torch.cat([scale * one.b.float() for one, scale in pairs], 1))
    return Adapter(factors, rank, float(rank), adapter.about)


def factorise(differences: Mapping[str, Tensor], rank: int) -> dict[str, Factors]:
    """The best approximations of rank `rank` to differences [out, in] of weights (W_trained - W), balanced: |a_i| = |b_i|.

    It uses the eigenvectors of D^T D in fp64, which gives the truncated SVD of D without its cost for tall matrices.
    """
    return {module: _factors(difference.double(), rank) for module, difference in differences.items()}


def _factors(difference: Tensor, rank: int) -> Factors:
    if difference.shape[0] < difference.shape[1]:
        transposed = _factors(difference.T, rank)
        return Factors(transposed.b.T.contiguous(), transposed.a.T.contiguous())
    _, vectors = torch.linalg.eigh(difference.T @ difference)  # eigenvalues ascend
    directions = vectors[:, -rank:].flip(1)
    images = difference @ directions  # columns: singular value times left singular vector
    root = images.norm(dim=0).sqrt()
    b = images / root.clamp_min(torch.finfo(root.dtype).tiny)
    return Factors((directions * root).T.float().contiguous(), b.float().contiguous())


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
    solution: Tensor = torch.linalg.lstsq(matrix.double(), right.double()).solution
    return solution.float()


def _rounded(rows: Tensor, fine: int | None) -> Tensor:
    stored = {part: tensor.numpy() for part, tensor in stored_rows(rows, fine).items()}
    return torch.from_numpy(restored_rows(stored, ""))
