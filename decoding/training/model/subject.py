"""What a run changes and what it leaves: a language model (an adapter or all of it), or something else that has parameters."""

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
    """The loop knows no more of what it trains than this."""

    model: Any  # what the objective's loss and evaluation are given
    trained: Mapping[str, Tensor]  # by name, leaves: fp32, or of type `dtype` where the optimiser keeps sharded masters
    dtype: torch.dtype
    device: torch.device
    result: str  # name of the result's folder
    small: bool  # the result is written with every checkpoint, not at the end alone
    write: Callable[[Path], None]  # what is trained so far, to a folder
    at: Callable[[float], None] = lambda progress: None  # told before each step how far the run is, 0 to 1


Subjects = Callable[[TrainConfig, Base, About, torch.dtype, torch.device], Subject]
"""(configuration, base, what the result says about itself, ...) -> what is trained. Raises what `train` raises."""


def language_model(config: TrainConfig, base: Base, about: About, dtype: torch.dtype, device: torch.device) -> Subject:
    """The base with an adapter, or all of its matrices."""
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
