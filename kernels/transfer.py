"""The one way of numbers from the processor to a GPU, and back.

A copy from pinned memory is only queued: nothing waits for it, and torch's allocator does not give the memory to anybody else
before it is done. A copy back waits for all that was queued before it: a round can afford one or two of those.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(numbers: Iterable[Any] | NDArray[Any], device: torch.device) -> Tensor:
    """Integers (or sequences of them), as int64, or an array, on the device. Does not wait for it."""
    return _pinned(numbers, device).to(device, non_blocking=True)


def send_into(buffer: Tensor, numbers: NDArray[Any]) -> None:
    """Fill the start of a buffer on the device [n, ...] with an array. Does not wait for it."""
    buffer[: len(numbers)].copy_(_pinned(numbers, buffer.device), non_blocking=True)


def fetched_pair(tokens: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids and scores of one shape, on the processor. Waits for the device once."""
    both = torch.stack([tokens.double(), scores.double()]).cpu()  # fp64 holds both exactly
    return both[0].long(), both[1]


def fetched(tensor: Tensor) -> list[Any]:
    """The numbers of a tensor. Waits for the device."""
    numbers: list[Any] = tensor.tolist()
    return numbers


def _pinned(numbers: Iterable[Any] | NDArray[Any], device: torch.device) -> Tensor:
    host = torch.from_numpy(numbers if isinstance(numbers, np.ndarray) else np.array(list(numbers), dtype=np.int64))
    return host.pin_memory() if device.type == "cuda" else host
