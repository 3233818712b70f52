"""A run's length, progress, reports and checkpoints."""

import ctypes
import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, cos, inf, pi
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from decoding.json_log import whole_lines
from training.config import TrainConfig, TrainingError

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Keep freed memory in the process; otherwise glibc returns it, and the kernel zeroes it again for the next pack.

    Does nothing if the C library has no mallopt. This is for long runs that own their process.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_TOP_PAD, 2**28)


@dataclass(frozen=True, slots=True)
class Length:
    """The end of a run in steps and in seconds; infinity if there is no such limit."""

    steps: float
    seconds: float

    def progress(self, step: float, elapsed_s: float) -> float:
        """0 at the start, 1 at the end."""
        return min(1.0, max(step / self.steps, elapsed_s / self.seconds))


def length_of(config: TrainConfig, packs: int, packs_per_step: int) -> Length:
    """The length of a run with `packs` packs per epoch."""
    steps = inf if config.steps is None else float(config.steps)
    if config.epochs is not None:
        steps = min(steps, ceil(config.epochs * packs / packs_per_step))
    return Length(steps, inf if config.minutes is None else 60 * config.minutes)


def learning_rate(config: TrainConfig, progress: float) -> float:
    """Linear from 0 over the warm-up, then a cosine down to `final_rate` of the peak."""
    if progress < config.warmup:
        return config.learning_rate * progress / config.warmup
    gone = (progress - config.warmup) / (1 - config.warmup)
    return config.learning_rate * (config.final_rate + (1 - config.final_rate) * (1 + cos(pi * gone)) / 2)


_SMOOTHED_STEPS = 20
LOG = "log.jsonl"


class Reporter:
    """Writes `log.jsonl`, and lines on stderr: every 5 seconds on a terminal, otherwise every 30. Only the leader writes.

    A step's record has step, loss (per answer token), learning_rate, gradient_norm, tokens (rows computed), targets and
    seconds. A validation's record has step and held_out (what `evaluate` returns).
    """

    def __init__(self, folder: Path, length: Length, start_step: int, leads: bool) -> None:
        self._length, self._leads = length, leads
        self._interval_s = 5.0 if sys.stderr.isatty() else 30.0
        self._recent: deque[Mapping[str, float]] = deque(maxlen=_SMOOTHED_STEPS)
        self._shown = -self._interval_s
        self._path = folder / LOG
        if leads:
            kept = [record for record in read_log(folder) if record["step"] < start_step]
            self._path.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")

    def say(self, line: str) -> None:
        """Write one line on stderr."""
        if self._leads:
            print(line, file=sys.stderr, flush=True)

    def step(self, record: Mapping[str, float], elapsed_s: float) -> None:
        """Report one training step; `elapsed_s` is the whole run's."""
        self._write(record)
        self._recent.append(record)
        if self._leads and monotonic() - self._shown >= self._interval_s:
            self._shown = monotonic()
            self.say(self._line(record, elapsed_s))

    def held_out(self, step: int, values: Mapping[str, Any]) -> None:
        """Report one validation."""
        self._write({"step": step, "held_out": values})
        shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        self.say(f"held out  step {step}  {shown}")

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._leads:
            with self._path.open("a", encoding="utf-8") as log:
                log.write(json.dumps(record) + "\n")

    def _line(self, record: Mapping[str, float], elapsed_s: float) -> str:
        targets = sum(each["targets"] for each in self._recent)
        loss = sum(each["loss"] * each["targets"] for each in self._recent) / targets
        rate = sum(each["tokens"] for each in self._recent) / sum(each["seconds"] for each in self._recent)
        done = self._length.progress(int(record["step"]) + 1, elapsed_s)
        left_s = elapsed_s / done * (1 - done) if done else 0.0
        return (
            f"step {record['step']:.0f}  loss {loss:.4f}  lr {record['learning_rate']:.2e}  {rate:.0f} tokens/s  "
            f"{100 * done:.1f} %  {duration(left_s)} left"
        )


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The records of a run so far; an incomplete last line, which a killed run leaves, is left out."""
    path = folder / LOG
    return [json.loads(line) for _, line in whole_lines(path)] if path.exists() else []


def duration(seconds: float) -> str:
    """The duration as h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


_FILE = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class State:
    """The order of the data and random draws are functions of seed and step, so no generator's state is needed."""

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
