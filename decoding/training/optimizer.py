"""AdamW with fp32 states, on gradients that may come from several packs and several processes."""

from collections.abc import Mapping

import torch
from torch import Tensor

from decoding.training.config import TrainConfig
from decoding.training.world import World


class Optimizer:
    """Clips, steps, and forgets the gradients. `trained` are fp32 leaves by name; what ends in `.lora_B` may go faster."""

    def __init__(self, trained: Mapping[str, Tensor], config: TrainConfig) -> None:
        self._trained, self._clip = list(trained.values()), config.clip
        b_rate = config.lora.b_rate if config.lora else 1.0
        groups = [
            {"params": [t for name, t in trained.items() if name.endswith(".lora_B") is faster], "factor": factor}
            for faster, factor in ((False, 1.0), (True, b_rate))
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def step(self, rate: float, world: World, loss: Tensor) -> float:
        """One update with the gradients of all processes, and `loss` replaced by its sum; returns the gradient's norm."""
        for tensor in self._trained:
            if tensor.grad is None:  # this process had no pack
                tensor.grad = torch.zeros_like(tensor)
        gradients = [tensor.grad for tensor in self._trained if tensor.grad is not None]
        world.add_up([*gradients, loss])
        norm = torch.nn.utils.clip_grad_norm_(self._trained, self._clip or float("inf"))
        for group in self._adamw.param_groups:
            group["lr"] = rate * group["factor"]
        self._adamw.step()
        self._adamw.zero_grad()
        return float(norm)

    def state(self) -> dict[str, object]:
        """For a checkpoint."""
        return self._adamw.state_dict()

    def restore(self, stored: dict[str, object]) -> None:
        """What `state` gave."""
        self._adamw.load_state_dict(stored)
