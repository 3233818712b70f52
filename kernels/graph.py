"""Runs a function over buffers of fixed address as one CUDA graph; without CUDA it is simply called. And keeps such graphs."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch

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
