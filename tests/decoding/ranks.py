"""Several processes at once, as torchrun starts them. They are forked from one that has imported torch, which takes seconds."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch

PRELOADED = ["tests.decoding.training.training_process", "tests.decoding.targets.parallel.parallel_process"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def world_of(size: int, port: int, rank: int) -> dict[str, str]:
    """What torchrun tells a process in its environment."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }


def in_processes(size: int, function: Callable[..., None], *arguments: Any) -> None:
    """Run a function of a module in so many processes; raises when one of them fails."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    asked = (size, free_port(), function, arguments)
    torch.multiprocessing.start_processes(_as_rank, asked, nprocs=size, start_method="forkserver")  # type: ignore[no-untyped-call]


def _as_rank(rank: int, size: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Ends without the interpreter's own shutdown, which torch's threads have been seen to abort now and then."""
    os.environ |= world_of(size, port, rank)
    torch.set_num_threads(1)
    function(*arguments)
    os._exit(0)
