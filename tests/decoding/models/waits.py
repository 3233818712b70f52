"""Counts where code for a GPU would wait for it, and what it would launch there, on a machine without one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.gpu.ragged import Graph

_READS = {"tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero"}
_MAKERS = {"tensor", "as_tensor"}
_INDEXED = {"__getitem__", "__setitem__"}


class Waits(TorchFunctionMode):
    """Every tensor counts as the device's but those made of Python's or numpy's numbers without naming a device.

    The host waits when it reads a tensor of the device; when it makes one there of its own numbers; when it copies one there
    without `non_blocking`; and when it selects from one by a list or a tensor of its own. What happens while paused is a
    kernel's business.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        wrap = torch.from_numpy  # which a mode does not see
        patch.setattr(torch, "from_numpy", lambda array: self._on_host(wrap(array)))
        self.seen: list[str] = []
        self._host: dict[int, Tensor] = {}  # by id, and kept, so that no id is used again
        self._paused = 0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given, name = kwargs or {}, getattr(function, "__name__", "")
        result = function(*args, **given)
        if self._paused:
            return result
        tensors = [each for each in args if isinstance(each, Tensor)]
        if name in _MAKERS and given.get("device") is None:
            return self._on_host(result)
        if name in ("to", "copy_") and self._is_copied(name, tensors):
            if not given.get("non_blocking"):
                self.seen.append(name)
            return result.clone() if name == "to" and id(result) in self._host else result
        if name in _MAKERS or (name in _READS and not self._is_host(*tensors)):
            self.seen.append(name)
            return self._on_host(result.clone()) if isinstance(result, Tensor) else result
        if name in _INDEXED and not self._is_host(tensors[0]) and self._by_host(args[1]):
            self.seen.append(name)
        return self._on_host(result) if tensors and self._is_host(*tensors) and isinstance(result, Tensor) else result

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._paused += 1
        yield
        self._paused -= 1

    def _is_copied(self, name: str, tensors: list[Tensor]) -> bool:
        return self._is_host(tensors[-1]) and (name == "to" or not self._is_host(tensors[0]))

    def _by_host(self, index: Any) -> bool:
        parts = index if isinstance(index, tuple) else (index,)
        return any(isinstance(each, list) or (isinstance(each, Tensor) and self._is_host(each)) for each in parts)

    def _is_host(self, *tensors: Tensor) -> bool:
        return all(id(each) in self._host for each in tensors)

    def _on_host(self, tensor: Tensor) -> Tensor:
        self._host[id(tensor)] = tensor
        return tensor


def as_kernels(waits: Waits, patch: pytest.MonkeyPatch, *functions: tuple[ModuleType, str]) -> None:
    """Let the references of these functions (module, name) count as the kernels that stand for them."""

    def standing_in(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **given: Any) -> Any:
            with waits.paused():
                return function(*args, **given)

        return run

    for module, name in functions:
        patch.setattr(module, name, standing_in(getattr(module, name)))


class Launches(TorchDispatchMode):
    """How many operators run that are no views, each a launch or more; a captured graph's replay counts as one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count, self._captured = 0, False
        replay = Graph.__call__

        def once(graph: Graph[Any]) -> Any:
            self.count, self._captured = self.count + 1, True
            try:
                return replay(graph)
            finally:
                self._captured = False

        patch.setattr(Graph, "__call__", once)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (self._captured or function.is_view)
        return function(*args, **(kwargs or {}))
