"""What a run needs to resume where it stopped: one file, replaced atomically."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoding.training.config import TrainingError

_FILE = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class State:
    """The order of the data and dropout are functions of seed and step, so no generator's state is needed."""

    step: int  # steps done
    elapsed_s: float  # of training, over all sessions
    curve: dict[str, Any]  # what the run depends on: configuration, base, data
    weights: dict[str, Tensor]  # the trained ones, fp32
    optimizer: dict[str, Any]
    best_loss: float  # lowest held-out loss so far


def save(state: State, folder: Path) -> None:
    """Replace the folder's checkpoint. If the process is killed, either the old or the new one remains."""
    staging = folder / f"{_FILE}.unfinished"
    torch.save({name: getattr(state, name) for name in State.__slots__}, staging)
    os.replace(staging, folder / _FILE)


def exists(folder: Path) -> bool:
    return (folder / _FILE).exists()


def load(folder: Path, curve: dict[str, Any]) -> State:
    """The folder's checkpoint. Raises TrainingError if it belongs to another run than the one that `curve` describes."""
    stored = torch.load(folder / _FILE, map_location="cpu", weights_only=True, mmap=True)  # every process reads it
    state = State(**stored)
    changed = sorted(name for name in curve.keys() | state.curve.keys() if curve.get(name) != state.curve.get(name))
    if changed:
        raise TrainingError(
            f"the run in {folder} had another {', '.join(changed)}: resume it as it was, or choose another folder"
        )
    return state
