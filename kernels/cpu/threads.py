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
from llvmlite import ir
from numba import types

from kernels.cpu.emit import I32, I64, intrinsic, kernel

_MOST = 16  # threads; a step of a small model gains nothing from more
_AWAKE = 2000  # looks at the gate before the processor is offered to others
_YIELDS = sys.platform != "win32"


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
    """Calls a compiled function on several threads at once: function(thread, threads, sync, *arguments).

    `sync` is the address of its counters: see `claim` and `wait`. counters: of work, at most. The function must end
    with `wait`.
    """

    def __init__(self, threads: int, counters: int) -> None:
        self.threads = threads
        self._sync = np.zeros(_GATE_WORDS + counters, np.int64)
        self._lock = Lock()
        self._helpers: list[Semaphore] = []
        self._owner = 0  # the process that has the helpers: a fork has none
        self._job: tuple[Callable[..., None], Sequence[Any]] = (lambda *_: None, ())

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """One call on every thread; returns when all of them are at their end. One caller at a time, others wait."""
        with self._lock:
            if self._owner != os.getpid():
                self._start()
            self._sync[_FIRST_COUNTER:] = 0  # not the gate: a helper may still be on its way out of it
            self._job = function, arguments
            for helper in self._helpers:
                helper.release()
            function(0, self.threads, self._sync.ctypes.data, *arguments)

    def _start(self) -> None:
        self._owner, self._helpers = os.getpid(), [Semaphore(0) for _ in range(self.threads - 1)]
        for index, wanted in enumerate(self._helpers, 1):
            Thread(target=self._help, args=(index, wanted), name=f"kernels-{index}", daemon=True).start()

    def _help(self, index: int, wanted: Semaphore) -> None:
        while True:
            wanted.acquire()
            function, arguments = self._job
            function(index, self.threads, self._sync.ctypes.data, *arguments)


_GATE_WORDS = 16  # how many have arrived, and how often all have: each in a cache line of its own
_ROUND, _FIRST_COUNTER = 8, _GATE_WORDS


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
    """The next piece of work of a phase that nobody has taken: 0, 1, 2, ..."""
    return _add_atomically(types.intp(sync + 8 * (_FIRST_COUNTER + phase)), 1)


@kernel
def wait(sync, threads):  # type: ignore[no-untyped-def]
    """Until every thread has come here."""
    if threads == 1:
        return
    gate = types.intp(sync + 8 * _ROUND)
    passed = _read_atomically(gate)
    if _add_atomically(types.intp(sync), 1) == threads - 1:
        _add_atomically(types.intp(sync), -threads)
        _add_atomically(gate, 1)
        return
    looks = 0
    while _read_atomically(gate) == passed:
        looks += 1
        _pause(looks > _AWAKE)
