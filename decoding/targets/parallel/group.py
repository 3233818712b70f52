"""The processes that compute one model together, as torchrun starts them: messages from the first one, sums and joins.

Messages are numbers and bytes through gloo, on any device; what the model computes goes through gloo on processors and through
NCCL on GPUs.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import ormsgpack
import torch
import torch.distributed as dist
from torch import Tensor

from decoding.errors import ModelUnavailable

Message = dict[str, Any]
_LONGEST_WAIT = timedelta(days=300)  # for a message: nobody may ask anything for a week
_AT_ONCE = 4096  # bytes of a message that need no second transfer; a round's are a few hundred
_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class ProcessLost(ModelUnavailable):
    """Another process of this model has ended."""


class Group:
    """This process among those that torchrun's environment describes. Raises ModelUnavailable where it is incomplete."""

    def __init__(self) -> None:
        if missing := [name for name in _NEEDED if name not in os.environ]:
            raise ModelUnavailable(
                f"WORLD_SIZE asks for several processes, but {missing[0]} is not set: start them with torchrun "
                "--no-python --nproc-per-node N sqlagent ..., or unset WORLD_SIZE"
            )
        with _told_if_lost():
            dist.init_process_group("gloo", timeout=_LONGEST_WAIT)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._computing: dist.ProcessGroup | None = None  # None: gloo

    def device(self, kind: str) -> str:
        """The device of this process, of this kind ("cpu", "cuda"). All processes must ask for the same kind in turn."""
        if not kind.startswith("cuda"):
            return kind
        place = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(place)
        self._computing = self._computing or dist.new_group(backend="nccl")
        return place

    def send(self, message: Message) -> None:
        """To all others. Raises ProcessLost."""
        packed = ormsgpack.packb(message)
        first = torch.zeros(_AT_ONCE, dtype=torch.uint8)
        first[:8] = torch.tensor([len(packed)]).view(torch.uint8)
        whole = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        first[8 : 8 + len(packed)] = whole[: _AT_ONCE - 8]
        with _told_if_lost():
            dist.broadcast(first, 0)
            if len(packed) > _AT_ONCE - 8:
                dist.broadcast(whole[_AT_ONCE - 8 :].clone(), 0)

    def receive(self) -> Message:
        """The first process's next message. Raises ProcessLost."""
        first = torch.empty(_AT_ONCE, dtype=torch.uint8)
        with _told_if_lost():
            dist.broadcast(first, 0)
            size = int(first[:8].view(torch.long))
            rest = torch.empty(max(0, size - (_AT_ONCE - 8)), dtype=torch.uint8)
            if len(rest):
                dist.broadcast(rest, 0)
        message: Message = ormsgpack.unpackb(torch.cat([first[8:], rest])[:size].numpy().tobytes())
        return message

    def add_up(self, x: Tensor) -> Tensor:
        """x, which becomes the sum over all processes."""
        with _told_if_lost():
            dist.all_reduce(x, group=self._computing)
        return x

    def joined(self, x: Tensor) -> Tensor:
        """The columns of all processes' x [rows, columns] side by side: [rows, size * columns]."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with _told_if_lost():
            dist.all_gather(parts, x, group=self._computing)
        return torch.cat(parts, 1)

    def leave(self) -> None:
        """Close the connections, which tells those who still wait."""
        dist.destroy_process_group()


@contextmanager
def _told_if_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ProcessLost(f"another process of this model has ended; start all of them again ({reason})") from error
