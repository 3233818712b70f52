"""AdamW with fp32 states, on gradients that may come from several packs and several processes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from decoding.training.config import TrainConfig
from decoding.training.run.master_weights import Masters, Sharded, Whole
from decoding.training.run.processes import World


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
