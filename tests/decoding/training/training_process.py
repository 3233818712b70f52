"""One of several training processes, in a module that a fresh interpreter imports quickly."""

import gc
import os
from functools import partial
from pathlib import Path

import torch

from tests.decoding.models.jacobi_data import invented_trajectories
from tests.decoding.models.training_data import agent_groups
from training.config import TrainConfig
from training.jacobi.states import JacobiConfig, jacobi_objective
from training.loop import train
from training.run.base import load_base


def train_as_rank(config: TrainConfig, folder: str, out: str, jacobi: JacobiConfig | None = None) -> None:
    """Fine-tuning, or Jacobi training on invented trajectories.

    Besides the results it leaves in `held-<rank>` how many bytes its tensors took between the last two steps.
    """
    if jacobi:
        objective = partial(jacobi_objective, jacobi)
        train(config, load_base(folder), invented_trajectories(), Path(out), objective=objective)
    else:
        held: list[int] = []
        train(
            config, load_base(folder), agent_groups(3, 4), Path(out), stopped=lambda: held.append(held_bytes()) or False
        )
        (Path(out) / f"held-{os.environ['RANK']}").write_text(str(held[-1]))


def held_bytes() -> int:
    """Of all tensors that are alive with more than 256 numbers: shorter ones, as norms, are not in parts."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.numel() > 256]
    return sum({each.data_ptr(): each.numel() * each.element_size() for each in tensors}.values())
