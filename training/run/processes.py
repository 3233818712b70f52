"""The processes that train together: one, or those that torchrun started."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class World:
    """This process among all. Every process computes with the whole model; they share out the packs and sum the gradients."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in one all-reduce."""
        if self.size == 1:
            return
        listed = list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in listed])
        dist.all_reduce(flat)
        for tensor, part in zip(listed, torch.split(flat, [tensor.numel() for tensor in listed]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def part(self, whole: Tensor) -> Tensor:
        """This process's part of the flattened tensor. All parts are equally long: the last is padded with zeros."""
        return self._parts(whole)[self.rank]

    def part_of_sum(self, whole: Tensor) -> Tensor:
        """This process's part of the sum of all processes' tensors of this shape."""
        parts = self._parts(whole)
        if self.size == 1:
            return parts[0]
        summed = torch.empty_like(parts[0])
        dist.reduce_scatter(summed, parts)
        return summed

    def joined(self, part: Tensor, shape: torch.Size) -> Tensor:
        """The whole tensor of this shape from the processes' parts."""
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.size > 1 else [part]
        if self.size > 1:
            dist.all_gather(parts, part)
        return torch.cat(parts)[: shape.numel()].view(shape)

    def _parts(self, whole: Tensor) -> list[Tensor]:
        filled = functional.pad(whole.reshape(-1), (0, -whole.numel() % self.size))
        return list(filled.chunk(self.size))

    def agree(self, value: float) -> float:
        """The leader's value, so that clocks and signals lead to the same decision in every process."""
        if self.size == 1:
            return value
        message = torch.tensor([value], dtype=torch.float64, device=self._message_device())
        dist.broadcast(message, 0)
        return float(message)

    def _message_device(self) -> str:
        return "cuda" if dist.get_backend() == "nccl" else "cpu"


def join(device: str) -> tuple[World, torch.device]:
    """The world that torchrun's environment describes, and this process's device ("auto": CUDA if available)."""
    size, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    kind = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.device(kind, local) if kind == "cuda" else torch.device(kind)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    return World(int(os.environ.get("RANK", "0")), size), where


def leave(together: bool) -> None:
    """End what `join` began. together: wait for all processes; if one left while another still writes, either could abort.

    After an error nobody waits, because the others will not come.
    """
    if dist.is_initialized():
        if together:
            dist.barrier()
        dist.destroy_process_group()
