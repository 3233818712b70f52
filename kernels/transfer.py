"""The one way of numbers from the processor to a GPU, and back.

A copy from pinned memory is only queued: nothing waits for it, and torch's allocator does not give the memory to anybody else
before it is done. A copy back waits for all that was queued before it: a round can afford one or two of those.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(numbers: Sequence[int] | NDArray[Any], device: torch.device) -> Tensor:
    """The numbers, or an array's, on the device. Does not wait for it."""
    host = torch.from_numpy(np.asarray(numbers, dtype=None if isinstance(numbers, np.ndarray) else np.int64))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def fetched(tensor: Tensor) -> list[Any]:
    """The numbers of a tensor. Waits for the device."""
    numbers: list[Any] = tensor.tolist()
    return numbers
