"""What a command does before it works: room in memory, its turn on the machine, imports that it is spared, and extensions.

Checks that this process may use the address space that its libraries need; with less, some crash without a message.

They need much more address space than memory: for their threads' stacks and arenas, and for files that are mapped whole.

Makes commands that answer with a model on this machine take turns: two at once take many times as long as one after the
other, and twenty do not fit into memory. Each has all processors during its turn.

The turn is a lock on a file in the cache folder, which the kernel releases when its holder dies. The file is named after the
machine, because machines may share a home folder. `chat` holds the turn while it loads and answers, not while a person
thinks; servers never take it. SQLAGENT_TURNS=off switches turns off.

Loads extensions: modules that register decoding methods, kinds of databases, nodes of the agent and data sets. An installed
package names its module in the entry-point group `sqlagent.extensions`; other modules are named by `--extension` or
`SQLAGENT_EXTENSIONS`. docs/extending.md shows how to write one.
"""

import fcntl
import os
import platform
import resource
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from app.shared import exit_codes

BASE_MB, PER_CORE_MB = 900, 100
"""The need of Python, DuckDB and its threads, measured on two cores; with less there was a segmentation fault."""
MODEL_MB = 1900
"""The need of torch and the embedded model on top of that."""


def check_address_space(with_model: bool) -> None:
    """Exit with one line if `ulimit -v` is too low. Raises typer.Exit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    needed_mb = BASE_MB + PER_CORE_MB * cores + (MODEL_MB if with_model else 0)
    if soft != resource.RLIM_INFINITY and soft < needed_mb << 20:
        raise exit_codes.fail(
            f"this process may have {soft >> 20} MiB of address space and needs {needed_mb}: raise `ulimit -v`, or lift it",
            exit_codes.FAILED,
        )


class MachineTurn:
    """This process's turn; other processes that want it wait. Taking or leaving it a second time does nothing.

    `is_needed` is False if the model runs elsewhere; then there is no waiting.
    """

    def __init__(self, is_needed: bool = True) -> None:
        self._is_needed = is_needed and os.environ.get("SQLAGENT_TURNS") != "off"
        self._descriptor: int | None = None

    def take(self) -> None:
        """Wait until nobody else has the turn, and say so on stderr. If files cannot be locked, there is no waiting."""
        if self._descriptor is not None or not self._is_needed:
            return
        try:
            self._descriptor = _opened()
            _wait(self._descriptor)
            os.truncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d" % os.getpid(), 0)
        except OSError:
            self.leave()
        except BaseException:  # Ctrl+C during the wait
            self.leave()
            raise

    def leave(self) -> None:
        """Release the turn for the next process."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _opened() -> int:
    from decoding.checkpoints.cache_folder import made_cache_root

    folder = made_cache_root() / "locks"
    folder.mkdir(exist_ok=True)
    return os.open(folder / f"turn-{platform.node()}.lock", os.O_RDWR | os.O_CREAT, 0o600)


def _wait(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace")
        who = f"process {holder}" if holder.isdigit() else "another process"
        print(f"sqlagent: waiting for {who}, which is answering a question", file=sys.stderr, flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


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


GROUP, VARIABLE = "sqlagent.extensions", "SQLAGENT_EXTENSIONS"


class ExtensionError(Exception):
    """An extension cannot be imported; the message is one line that says which and why."""


def load_extensions(named: Iterable[str] = ()) -> None:
    """Import the extensions of installed packages, those that the environment names, and those `named`.

    Processes that are started from now on find all of these in their environment. Raises ExtensionError.
    """
    if given := dict.fromkeys([*_from_environment(), *named]):
        os.environ[VARIABLE] = ",".join(given)
    for module in extensions():
        _load(module)


def extensions() -> list[str]:
    """The modules that installed packages and the environment name."""
    installed = [each.value for each in entry_points(group=GROUP)]
    return list(dict.fromkeys([*installed, *_from_environment()]))


def _from_environment() -> list[str]:
    return os.environ.get(VARIABLE, "").replace(",", " ").split()


def _load(module: str) -> None:
    try:
        import_module(module)
    except Exception as error:  # an extension's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        what_to_do = "install it, or put its folder into PYTHONPATH" if is_absent else "correct it, or leave it out"
        raise ExtensionError(f"the extension {module} cannot be imported ({reason}): {what_to_do}") from error
