"""The fp32 weights that AdamW updates: those that the model computes with, or this process's shard of them."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from decoding.training.run.processes import World


class Masters(Protocol):
    """Every process calls every method, in the same order.

    leaves: the tensors that AdamW updates, by the names of the trained tensors; they have gradients after `add_up`.
    """

    leaves: Mapping[str, Tensor]

    def collect(self) -> None:
        """Take in the gradients of a backward pass; to be called after each one."""

    def add_up(self, loss: Tensor) -> Tensor:
        """Sum the gradients, and `loss` in place, over all processes; returns the norm of the whole gradient."""

    def spread(self) -> None:
        """Give the model the weights that AdamW has updated."""

    def whole(self, name: str, leaf: Tensor) -> Tensor:
        """A leaf, or a moment of one, in full on the CPU; only the leader gets that."""

    def part(self, whole: Tensor) -> Tensor:
        """This process's part of a leaf or a moment: the inverse of `whole`."""


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
    """Weights, moments and gradients in fp32 are sharded among the processes; the model computes with a copy in its own type.

    This is ZeRO (arXiv 1910.02054) for states and gradients, per tensor: in bf16 and with n processes, a weight takes
    2 + 2 + 16 / n bytes (the copy, its gradient, this process's shard) instead of 18. The masters are initialised from the
    copies, so an fp32 checkpoint that is trained in bf16 is rounded once.
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
