"""Several threads in one compiled call: who takes the next piece of work, and waiting for each other.

numba's own threading layers are left alone: one of them may be entered by a single thread at a time, another shares its
workers with torch. Here plain Python threads call the same compiled function without the interpreter's lock.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock, Semaphore, Thread
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from kernels.cpu.emit import I32, I64, intrinsic, kernel

_MOST = 16  # threads; a step of a small model gains nothing from more
_AWAKE = 2000  # looks at a counter before the processor is offered to others
_YIELDS = sys.platform != "win32"

_Job = tuple[Callable[..., None], npt.NDArray[np.int64], Sequence[Any]]


def thread_count() -> int:
    """`OMP_NUM_THREADS`, else the processor's cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wanted.isdigit() and int(wanted):
        return min(int(wanted), _MOST)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable // _threads_of_a_core(), _MOST))


def _threads_of_a_core() -> int:
    try:
        return 2 if Path("/sys/devices/system/cpu/smt/active").read_text().strip() == "1" else 1
    except OSError:
        return 1


class Team:
    """Calls a compiled function on several threads at once: function(thread, sync, *arguments).

    Work comes in phases of so many pieces, which threads `claim` and `finish`; a phase ends for a thread when all of its
    pieces are finished, by whomever (`wait`). So a thread that comes late, or not at all, on a busy machine costs only
    its help. It then finds nothing to do, and must touch nothing: it may be there after the call has returned.

    phases: at most. threads: the caller's included.
    """

    def __init__(self, threads: int, phases: int) -> None:
        self.threads, self._phases = threads, phases
        self._lock = Lock()
        self._helpers: list[Semaphore] = []
        self._owner = 0  # the process that has the helpers: a fork has none
        self._job: _Job = (lambda *_: None, np.zeros(0, np.int64), ())

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """The function's work, done when this returns. One caller at a time, others wait."""
        with self._lock:
            if self._owner != os.getpid():
                self._start()
            # New counters for every call: those who are late still look at theirs.
            sync = np.zeros(2 * self._phases, np.int64)
            self._job = function, sync, arguments
            for helper in self._helpers:
                helper.release()
            function(0, sync.ctypes.data, *arguments)

    def _start(self) -> None:
        self._owner, self._helpers = os.getpid(), [Semaphore(0) for _ in range(self.threads - 1)]
        for index, wanted in enumerate(self._helpers, 1):
            Thread(target=self._help, args=(index, wanted), name=f"kernels-{index}", daemon=True).start()

    def _help(self, index: int, wanted: Semaphore) -> None:
        while True:
            wanted.acquire()
            function, sync, arguments = self._job
            function(index, sync.ctypes.data, *arguments)


@intrinsic
def _add_atomically(typing: Any, address: Any, amount: Any) -> Any:
    """The number at `address` before `amount` was added."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        address, amount = arguments
        return b.atomic_rmw("add", b.inttoptr(address, I64.as_pointer()), amount, "seq_cst")

    return types.intp(types.intp, types.intp), codegen


@intrinsic
def _read_atomically(typing: Any, address: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return b.load_atomic(b.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

    return types.intp(types.intp), codegen


@intrinsic
def _pause(typing: Any, offers: Any) -> Any:
    """Wait a moment; offers: let other processes have the processor."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        if _YIELDS:
            kind = ir.FunctionType(I32, [])
            known = b.module.globals.get("sched_yield") or ir.Function(b.module, kind, "sched_yield")
            with b.if_then(arguments[0]):
                b.call(known, [])
        pause = ir.FunctionType(ir.VoidType(), [])
        b.call(b.module.globals.get("llvm.x86.sse2.pause") or ir.Function(b.module, pause, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(types.boolean), codegen


@kernel
def claim(sync, phase):  # type: ignore[no-untyped-def]
    """The next piece of a phase that nobody has taken: 0, 1, 2, ...; there may be no such piece."""
    return _add_atomically(sync + 16 * phase, 1)


@kernel
def finish(sync, phase):  # type: ignore[no-untyped-def]
    """Say that a claimed piece is done, and claim the next."""
    _add_atomically(sync + 16 * phase + 8, 1)
    return claim(sync, phase)


@kernel
def wait(sync, phase, pieces):  # type: ignore[no-untyped-def]
    """Until all pieces of a phase are done."""
    looks = 0
    while _read_atomically(sync + 16 * phase + 8) < pieces:
        looks += 1
        _pause(looks > _AWAKE)
