"""Keeps a question from importing LangSmith's client, of which LangGraph needs a few names while nothing is traced."""

import os
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_TRACING = ("LANGSMITH_", "LANGCHAIN_")  # environment variables that switch tracing on or set it up
_NOTHING_TRACED = dict.fromkeys(
    ("parent", "project_name", "address", "tags", "metadata", "enabled", "replicas", "client", "distributed_parent_id")
)


class _Unused:
    """A class that is named where runs are traced, and never made here."""


_NAMES: dict[str, dict[str, Any]] = {
    "langsmith.utils": {"tracing_is_enabled": lambda *_: False},
    "langsmith.address": {"AgentAddress": _Unused},
    "langsmith.client": {"Client": _Unused},
    "langsmith.run_trees": {"RunTree": _Unused},
    "langsmith.run_helpers": {
        "get_tracing_context": lambda *_: dict(_NOTHING_TRACED), "_set_tracing_context": lambda *_: None
    },
    "langgraph_sdk": {},
}  # fmt: skip


class _StandIn(ModuleType):
    """A module that has a few names at once and becomes the real one when any other is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # first, because the modules import each other
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def spare_tracing() -> bool:
    """Put stand-ins in the place of the modules that take a quarter of a question's imports; whether that was possible.

    It is not where tracing is set up, or where something has imported LangSmith already.
    """
    traced = any(name.startswith(_TRACING) for name in os.environ)
    if traced or any(name in sys.modules for name in _NAMES):
        return False
    specs = {name: find_spec(name) for name in _NAMES}
    for name, spec in specs.items():
        if spec is not None:
            module = module_from_spec(spec)
            module.__class__ = _StandIn
            module.__dict__.update(_NAMES[name])
            sys.modules[name] = module
    return True
