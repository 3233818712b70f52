"""The fp32 weights that AdamW moves: those that the model computes with, or this process's part of them."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from decoding.training.run.processes import World


class Masters(Protocol):
    """Every process calls every verb, in the same order.

    leaves: by the names of what is trained, what AdamW moves; their gradients are there after `add_up`.
    """

    leaves: Mapping[str, Tensor]

    def collect(self) -> None:
        """After each backward pass."""

    def add_up(self, loss: Tensor) -> Tensor:
        """Add the gradients, and `loss` in place, of all processes; returns the norm of the whole gradient."""

    def spread(self) -> None:
        """Give the model the weights that AdamW has moved."""

    def whole(self, name: str, leaf: Tensor) -> Tensor:
        """A leaf, or a moment of one, in full on the CPU; the leader's alone is."""

    def part(self, whole: Tensor) -> Tensor:
        """The other way."""


class Whole:
    """The model computes with the fp32 weights themselves."""

    def __init__(self, trained: Mapping[str, Tensor], world: World) -> None:
        self.leaves, self._world = trained, world

    def collect(self) -> None:
        pass

    def add_up(self, loss: Tensor) -> Tensor:
        gradients: list[Tensor] = []
        for leaf in self.leaves.values():
            if leaf.grad is None:  # this process had no pack
                leaf.grad = torch.zeros_like(leaf)
            gradients.append(leaf.grad)
        self._world.add_up([*gradients, loss])
        return get_total_norm(gradients)

    def spread(self) -> None:
        pass

    def whole(self, name: str, leaf: Tensor) -> Tensor:
        return leaf.detach().cpu() if self._world.leads else leaf.detach()

    def part(self, whole: Tensor) -> Tensor:
        return whole


class Sharded:
    """Weights, moments and gradients in fp32 are parted among the processes; the model computes with a copy in its own type.

    ZeRO (arXiv 1910.02054) of the states and gradients, per tensor: in bf16 and with n processes, 2 + 2 + 16 / n bytes a weight
    (the copy, its gradient, this process's part) in place of 18. The masters begin as the copies are: an fp32 checkpoint
    that is trained in bf16 is rounded once.
    """

    def __init__(self, trained: Mapping[str, Tensor], world: World) -> None:
        self._trained, self._world = trained, world
        self.leaves: Mapping[str, Tensor] = {
            name: world.part(copy.detach().float()).clone() for name, copy in trained.items()
        }

    def collect(self) -> None:
        for name, copy in self._trained.items():
            gradient = torch.zeros_like(copy) if copy.grad is None else copy.grad
            summed = self._world.part_of_sum(gradient.float())
            leaf, copy.grad = self.leaves[name], None
            leaf.grad = summed if leaf.grad is None else leaf.grad.add_(summed)

    def add_up(self, loss: Tensor) -> Tensor:
        norm = get_total_norm([leaf.grad for leaf in self.leaves.values() if leaf.grad is not None])
        squared = norm.square()
        self._world.add_up([loss, squared])
        return squared.sqrt()

    def spread(self) -> None:
        for name, copy in self._trained.items():
            copy.data.copy_(self._world.joined(self.leaves[name].to(copy.dtype), copy.shape))

    def whole(self, name: str, leaf: Tensor) -> Tensor:
        joined = self._world.joined(leaf.detach(), self._trained[name].shape)
        return joined.cpu() if self._world.leads else leaf.detach()

    def part(self, whole: Tensor) -> Tensor:
        return self._world.part(whole)
