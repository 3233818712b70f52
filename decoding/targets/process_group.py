"""The processes that compute one model together, as torchrun starts them, and what the first tells the others."""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary, finalize

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


_PATIENCE_S = 10.0  # for a forward that goes on when all should end


class Leader:
    """Numbers what all processes have (models, tables), and sends messages. Any thread may use it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._turn = RLock()
        self._is_in_step = True
        self._changes: deque[tuple[Any, ...]] = deque()
        self._numbers: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._next = count(1)

    def number(self, thing: object) -> int:
        """By which the others know it."""
        known = self._numbers.get(thing)
        return self.adopt(thing, self.new_number()) if known is None else known

    def new_number(self) -> int:
        return next(self._next)

    def adopt(self, thing: object, number: int) -> int:
        """The others know a thing by this number, and forget it when it is gone here."""
        self._numbers[thing] = number
        finalize(thing, self._changes.append, ("forget", number)).atexit = False
        return number

    def note(self, *change: Any) -> None:
        """A change of a table, for the next message; see `follower`."""
        self._changes.append(change)

    @contextmanager
    def told(self, do: str, **about: Any) -> Iterator[None]:
        """Tell the others to do something; what is done inside is the same. Raises ProcessLost.

        If it fails here, the others wait in the middle of it, so nothing more can be computed together.
        """
        with self._turn:
            if not self._is_in_step:
                raise ProcessLost("a forward of several processes was broken off; start all of them again")
            self._is_in_step = False
            changes = [self._changes.popleft() for _ in range(len(self._changes))]
            self.group.send({"do": do, "changes": changes, **about})
            yield
            self._is_in_step = True

    def end(self) -> None:
        """Let the others end, and leave the group."""
        if self._turn.acquire(timeout=_PATIENCE_S):
            try:
                if self._is_in_step:
                    self.group.send({"do": "end"})
            except ProcessLost:
                pass
            finally:
                self._turn.release()
        self.group.leave()
