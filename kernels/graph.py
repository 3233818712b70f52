"""Runs a function over buffers of fixed address as one CUDA graph; without CUDA it is simply called."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")
_WARM_UPS = 2  # libraries allocate their workspaces and Triton compiles, neither of which a capture allows


class Graph(Generic[Result]):
    """Calls `run`, whose tensors must all keep their addresses. The next call overwrites the result.

    pool: memory shared by graphs that never run at the same time, from `torch.cuda.graph_pool_handle()`.
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
        with torch.cuda.graph(self._graph, pool=pool):
            self._result = run()

    def __call__(self) -> Result:
        if self._graph is None:
            return self._run()
        self._graph.replay()
        return self._result
