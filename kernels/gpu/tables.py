"""Moves of accepted tokens in tables, transfers, and captured CUDA graphs.

The one way of numbers from the processor to a GPU, and back.

A copy from pinned memory is only queued: nothing waits for it, and torch's allocator does not give the memory to anybody else
before it is done. A copy back waits for all that was queued before it: a round can afford one or two of those.

Runs a function over buffers of fixed address as one CUDA graph; without CUDA it is simply called. And keeps such graphs.

Moves the accepted rows of tables up to the committed ones, in place, in all planes, for all sequences of a round at once.

Decides between a Triton kernel and its plain-torch reference.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import triton
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


Result = TypeVar("Result")
Made = TypeVar("Made")
_WARM_UPS = 2  # libraries allocate their workspaces and Triton compiles, neither of which a capture allows


class Graph(Generic[Result]):
    """Calls `run`, whose tensors must all keep their addresses. The next call overwrites the result.

    pool: memory shared by graphs that never run at the same time, from `torch.cuda.graph_pool_handle()`. What other threads
    call meanwhile does not break the capture.
    """

    def __init__(self, run: Callable[[], Result], device: torch.device, pool: Any = None) -> None:
        self._run, self._graph = run, None
        if device.type != "cuda":
            return
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._result = run()

    def __call__(self) -> Result:
        if self._graph is None:
            return self._run()
        self._graph.replay()
        return self._result


class RecentGraphs(Generic[Made]):
    """At most `most` of what was captured, by its sizes; what was not used for longest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: OrderedDict[Hashable, Made] = OrderedDict()

    def __len__(self) -> int:
        return len(self._made)

    def get(self, sizes: Hashable, capture: Callable[[], Made]) -> Made:
        """What was captured for these sizes, or is now."""
        if sizes not in self._made:
            while len(self._made) >= self._most:
                self._made.popitem(last=False)
            self._made[sizes] = capture()
        self._made.move_to_end(sizes)
        return self._made[sizes]


def on_triton(tensor: Tensor) -> bool:
    """True on CUDA, and anywhere while Triton's interpreter is on (TRITON_INTERPRET=1 since before this was imported)."""
    return tensor.is_cuda or bool(triton.knobs.runtime.interpret)


def padded(size: int, least: int = 16) -> int:
    """The next power of two, but at least `least`: Triton's matrix products take no smaller sizes than 16."""
    return max(least, 1 << (size - 1).bit_length())
