"""One of several training processes, in a module that a fresh interpreter imports quickly."""

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


def train_as_rank(
    rank: int, port: int, config: TrainConfig, folder: str, out: str, jacobi: JacobiConfig | None = None
) -> None:
    """What torchrun would start, in a world of two: fine-tuning, or Jacobi training on invented trajectories.

    It ends without the interpreter's own shutdown, which torch's threads have been seen to abort now and then when all was
    done.
    """
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    if jacobi:
        objective = partial(jacobi_objective, jacobi)
        train(config, load_base(folder), invented_trajectories(), Path(out), objective=objective)
    else:
        train(config, load_base(folder), agent_groups(3, 4), Path(out))
    os._exit(0)
