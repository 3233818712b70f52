"""What a run trains and writes: a language model (an adapter or all of it), or something else that has parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoding.checkpoints.adapters.adapter import About
from decoding.training.config import TrainConfig
from decoding.training.model.base import Base, initial_adapter, ready_model, write_result


@dataclass(frozen=True, slots=True)
class Subject:
    """All that the loop knows about what it trains."""

    model: Any  # passed to the objective's loss and evaluation
    trained: Mapping[str, Tensor]  # leaves by name: fp32, or of type `dtype` if the optimiser keeps sharded masters
    dtype: torch.dtype
    device: torch.device
    result: str  # name of the result's folder
    small: bool  # whether the result is written with every checkpoint, not only at the end
    write: Callable[[Path], None]  # writes the result so far to a folder
    at: Callable[[float], None] = lambda progress: None  # called before each step with the run's progress, 0 to 1


Subjects = Callable[[TrainConfig, Base, About, torch.dtype, torch.device], Subject]
"""(configuration, base, the result's description, ...) -> what is trained. Raises what `train` raises."""


def language_model(config: TrainConfig, base: Base, about: About, dtype: torch.dtype, device: torch.device) -> Subject:
    """Trains the base with an adapter, or all of its matrices."""
    adapter = initial_adapter(base, config, about)
    model = ready_model(base, adapter, config, dtype, device)
    return Subject(
        model,
        model.trained,
        model.dtype,
        model.device,
        result="adapter" if adapter else "model",
        small=adapter is not None,
        write=lambda folder: write_result(model, base, adapter, config, folder),
    )
