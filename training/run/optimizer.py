"""AdamW with fp32 states, and the fp32 weights that it updates.

The fp32 weights that AdamW updates: those that the model computes with, or this process's shard of them.

AdamW with fp32 states, on gradients that may come from several packs and several processes.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from training.config import TrainConfig
from training.run.processes import World


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


class Optimizer:
    """Clips the gradients, takes a step, and zeroes them. `trained`: leaves by name; those ending in `.lora_B` may have a
    higher rate.
    """

    def __init__(self, trained: Mapping[str, Tensor], config: TrainConfig, world: World) -> None:
        self._masters: Masters = Sharded(trained, world) if config.sharded else Whole(trained, world)
        self._clip = config.clip
        b_rate = config.lora.b_rate if config.lora else 1.0
        by_speed = [[name for name in trained if name.endswith(".lora_B") is faster] for faster in (False, True)]
        self._names = [name for names in by_speed for name in names]  # as AdamW numbers them
        leaves = self._masters.leaves
        self._adamw = torch.optim.AdamW(
            [
                {"params": [leaves[name] for name in names], "factor": factor}
                for names, factor in zip(by_speed, (1.0, b_rate), strict=True)
                if names
            ],
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def collect(self) -> None:
        """Take in the gradients of a backward pass; to be called after each one."""
        self._masters.collect()

    def step(self, rate: float, loss: Tensor) -> float:
        """Update with the gradients of all processes, and replace `loss` by its sum; returns the gradient's norm."""
        norm = self._masters.add_up(loss)
        clip_grads_with_norm_(self._masters.leaves.values(), self._clip or float("inf"), norm)
        for group in self._adamw.param_groups:
            group["lr"] = rate * group["factor"]
        self._adamw.step()
        self._adamw.zero_grad()
        self._masters.spread()
        return float(norm)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """For a checkpoint: weights by name, and AdamW's own state. Every process calls this, but only the leader gets them
        whole.
        """
        weights = {name: self._masters.whole(name, leaf) for name, leaf in self._masters.leaves.items()}
        stored = self._adamw.state_dict()
        moments = {
            number: {
                key: self._masters.whole(self._names[number], value) if value.dim() else value
                for key, value in of.items()
            }
            for number, of in stored["state"].items()
        }
        return weights, {**stored, "state": moments}

    def restore(self, weights: Mapping[str, Tensor], stored: Mapping[str, Any]) -> None:
        """Load what `state` gave the leader, for any number of processes then and now."""
        for name, leaf in self._masters.leaves.items():
            leaf.data.copy_(self._masters.part(weights[name]))
        moments = {
            number: {key: self._masters.part(value) if value.dim() else value for key, value in of.items()}
            for number, of in stored["state"].items()
        }
        self._adamw.load_state_dict({**stored, "state": moments})
        self._masters.spread()
