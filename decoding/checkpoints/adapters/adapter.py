"""Low-rank adapters, and how they are merged into a model's weights. `decoding.checkpoints.adapters.adapter_files` reads and
writes them.

An adapter adds scale * B A to some weights W [out, in], with A [rank, in] and B [out, rank] (LoRA, arXiv 2106.09685).
It is merged when weights are loaded, so decoding costs no more than without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from decoding.checkpoints.arrays import Floats, floats
from decoding.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

Weight = TypeVar("Weight")  # a tensor, or an array


class AdapterMismatch(ModelError):
    """An adapter does not belong to the model to which it should be applied."""


@dataclass(frozen=True, slots=True)
class About:
    """An adapter's description of itself."""

    base: str  # name of the model that it was trained on
    base_sha256: str  # of that model's weights, see `weight_files.base_sha256`
    prompt_version: int | None = None  # of the prompts that it was trained on; None if unknown
    notes: Mapping[str, Any] = field(default_factory=dict)  # recipe, data, licence: JSON values


@dataclass(frozen=True, slots=True)
class Factors:
    """The change of one weight, without the adapter's scale."""

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]


class StoredFactors(Mapping[str, Factors]):
    """Factors that lie in a file, which may be read without torch."""

    @abstractmethod
    def arrays(self, module: str) -> tuple[Floats, Floats]:
        """a and b of a module."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Factors by module, with transformers' names (`model.layers.0.self_attn.q_proj`)."""

    factors: Mapping[str, Factors]
    rank: int
    alpha: float
    about: About
    rank_stabilised: bool = False  # rsLoRA, arXiv 2312.03732
    files: tuple[Path, ...] = ()  # from which it was read

    @property
    def scale(self) -> float:
        return self.alpha / (sqrt(self.rank) if self.rank_stabilised else self.rank)

    def difference(self, module: str) -> Tensor:
        """scale * B A [out, in], fp32."""
        factors = self.factors[module]
        return self.scale * (factors.b.float() @ factors.a.float())


    def arrays(self, module: str) -> tuple[Floats, Floats]:
        """a and b of a module, without torch where they lie in a file."""
        if isinstance(self.factors, StoredFactors):
            return self.factors.arrays(module)
        return floats(self.factors[module].a), floats(self.factors[module].b)


def grown(adapter: Adapter, rank: int, seed: int) -> Adapter:
    """The same change with components added until the rank is `rank`: A is drawn as for a new adapter, B is zero.

    The scale stays, so that the old components mean what they meant.
    """
    import torch

    chance, more, factors = torch.Generator().manual_seed(seed), rank - adapter.rank, dict[str, Factors]()
    for module in sorted(adapter.factors):
        a, b = adapter.factors[module].a.float(), adapter.factors[module].b.float()
        bound = a.shape[1] ** -0.5
        drawn = torch.empty(more, a.shape[1]).uniform_(-bound, bound, generator=chance)
        factors[module] = Factors(torch.cat([a, drawn]), torch.cat([b, b.new_zeros(len(b), more)], 1))
    alpha = adapter.scale * (sqrt(rank) if adapter.rank_stabilised else rank)
    return Adapter(factors, rank, alpha, adapter.about, adapter.rank_stabilised)


def check_base(adapter: Adapter, base_sha256: str, force: bool = False) -> None:
    """Refuse a model that the adapter was not trained on, unless forced. Raises AdapterMismatch."""
    if not force and adapter.about.base_sha256 != base_sha256:
        raise AdapterMismatch(
            f"the adapter was trained on {adapter.about.base} ({adapter.about.base_sha256[:12]}), and this model is another "
            f"({base_sha256[:12]}): choose that model, or leave the adapter out"
        )


def merged_weights(weights: Iterable[tuple[str, Tensor]], adapter: Adapter | None) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors with the adapter's changes added in fp32; changed tensors come as fp32, the others as they are.

    Without an adapter, `weights` are unchanged. Raises AdapterMismatch if a tensor is missing or has another shape.
    """

    def added(module: str, tensor: Tensor) -> Tensor:
        assert adapter is not None
        difference = adapter.difference(module)
        _check_shapes(module, tensor.shape, difference.shape)
        return tensor.float() + difference.to(tensor.device)

    return _merged(weights, adapter, added)


def merged_arrays(weights: Iterable[tuple[str, Any]], adapter: Adapter | None) -> Iterator[tuple[str, Any]]:
    """`merged_weights` without torch, for arrays and tensors; changed ones come as arrays."""

    def added(module: str, weight: Any) -> Floats:
        assert adapter is not None
        a, b = adapter.arrays(module)
        _check_shapes(module, weight.shape, (len(b), a.shape[1]))
        return floats(weight) + np.float32(adapter.scale) * (b @ a)

    return _merged(weights, adapter, added)


def _merged(
    weights: Iterable[tuple[str, Weight]], adapter: Adapter | None, added: Callable[[str, Weight], Weight]
) -> Iterator[tuple[str, Weight]]:
    changed = set(adapter.factors) if adapter else set()
    for name, weight in weights:
        module = name.removesuffix(".weight")
        if module in changed:
            changed.remove(module)
            yield name, added(module, weight)
        else:
            yield name, weight
    if changed:
        raise AdapterMismatch(f"the adapter changes {min(changed)}, which the model does not have")


def _check_shapes(module: str, models: Sequence[int], adapters: Sequence[int]) -> None:
    if tuple(models) != tuple(adapters):
        raise AdapterMismatch(
            f"the adapter changes {module} of shape {list(adapters)}; the model's has {list(models)}"
        )


def factorise(differences: Mapping[str, Tensor], rank: int) -> dict[str, Factors]:
    """The best approximations of rank `rank` to differences [out, in] of weights (W_trained - W), balanced: |a_i| = |b_i|.

    It uses the eigenvectors of D^T D in fp64, which gives the truncated SVD of D without its cost for tall matrices.
    """
    return {module: _factors(difference.double(), rank) for module, difference in differences.items()}


def _factors(difference: Tensor, rank: int) -> Factors:
    import torch

    if difference.shape[0] < difference.shape[1]:
        transposed = _factors(difference.T, rank)
        return Factors(transposed.b.T.contiguous(), transposed.a.T.contiguous())
    _, vectors = torch.linalg.eigh(difference.T @ difference)  # eigenvalues ascend
    directions = vectors[:, -rank:].flip(1)
    images = difference @ directions  # columns: singular value times left singular vector
    root = images.norm(dim=0).sqrt()
    b = images / root.clamp_min(torch.finfo(root.dtype).tiny)
    return Factors((directions * root).T.float().contiguous(), b.float().contiguous())
