"""Threads in one compiled call: who takes the next piece of work, and waiting for each other.

numba's own threading layers are not used: one of them may be entered by a single thread at a time, another shares its workers
with torch. Here plain Python threads call the same compiled function without the interpreter's lock.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from kernels.cpu.emit import I32, I64, get_long, intrinsic, kernel
from kernels.cpu.processor import IS_ARM

_AWAKE = 2000  # looks at a counter before the processor is offered to others
_YIELDS = sys.platform != "win32"


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
        name, arguments = ("llvm.aarch64.hint", [ir.Constant(I32, 1)]) if IS_ARM else ("llvm.x86.sse2.pause", [])
        pause = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
        b.call(b.module.globals.get(name) or ir.Function(b.module, pause, name), arguments)
        return context.get_dummy_value()

    return types.void(types.boolean), codegen


@kernel
def _counter(sync, row, phase):  # type: ignore[no-untyped-def]
    """Where a counter of a phase is; row 0: pieces done, 1: pieces taken by anyone, from 2 on: taken of a thread's own."""
    return sync + 16 + row * get_long(sync, 0) + 8 * phase


@kernel
def claim(sync, phase):  # type: ignore[no-untyped-def]
    """The next piece of a phase that nobody has taken: 0, 1, 2, ...; there may be no such piece."""
    return _add_atomically(_counter(sync, 1, phase), 1)


@kernel
def first_own(pieces, thread, threads):  # type: ignore[no-untyped-def]
    """The first piece that a thread takes by itself; those from there up to the first one of the next thread are its own."""
    return pieces * thread // threads


@kernel
def claim_own(sync, phase, pieces, thread):  # type: ignore[no-untyped-def]
    """The next of the thread's own pieces, one after another; then what is left of the others'; `pieces`: none is left."""
    threads = get_long(sync, 1)
    for turn in range(threads):
        owner = (thread + turn) % threads
        first, stop = first_own(pieces, owner, threads), first_own(pieces, owner + 1, threads)
        taken = _counter(sync, 2 + owner, phase)
        if first + _read_atomically(taken) < stop:
            piece = first + _add_atomically(taken, 1)
            if piece < stop:
                return piece
    return pieces


@kernel
def meet(sync, phase, done, pieces):  # type: ignore[no-untyped-def]
    """Say how many pieces of a phase this thread has done, and wait until all of them are."""
    finished, looks = _counter(sync, 0, phase), 0
    if done:
        _add_atomically(finished, done)
    while _read_atomically(finished) < pieces:
        looks += 1
        _pause(looks > _AWAKE)


_MOST = 16  # threads; a step of a small model gains nothing from more

_Job = tuple[Callable[..., None], int, Sequence[Any], Any]


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


class WorkerPool:
    """Calls a compiled function on several threads at once: function(thread, sync, *arguments).

    Work comes in phases of so many pieces, which threads `claim`; a phase ends for a thread when all of its pieces are
    done, by whomever (`meet`). So a thread that comes late, or not at all, on a busy machine costs only
    its help. It may come after the call has returned. It then finds nothing to do, and before a `claim` tells it so it
    must read nothing but what `kept` holds.

    phases: at most. threads: the caller's included.
    """

    def __init__(self, threads: int, phases: int) -> None:
        self.threads, self._phases = threads, phases
        self._lock = Lock()
        self._resting: list[Lock] = []  # of each helper: held until it is wanted
        self._owner = 0  # the process that has the helpers: a fork has none
        self._job: _Job = (lambda *_: None, 0, (), None)

    def run(self, function: Callable[..., None], *arguments: Any, kept: Any = None) -> None:
        """The function's work, done when this returns. One caller at a time, others wait.

        kept: what holds the memory that threads read before they claim a piece, those that come late too.
        """
        with self._lock:
            if self._owner != os.getpid():
                self._start()
            # New counters for every call: those who are late still look at theirs.
            sync, first = self._counters(self.threads)
            self._job = function, first, arguments, (kept, sync)
            for resting in self._resting:
                if resting.locked():  # else it has not yet come to the call before, and will find this one
                    resting.release()
            function(0, first, *arguments)

    def run_alone(self, function: Callable[..., None], *arguments: Any) -> None:
        """The same by the caller itself: for work that is done before a helper has come."""
        with self._lock:
            _kept, first = self._counters(1)  # for as long as the call takes
            function(0, first, *arguments)

    def _counters(self, threads: int) -> tuple[npt.NDArray[np.int64], int]:
        """What the threads of a call share, and its address."""
        sync = np.zeros(2 + (2 + threads) * self._phases, np.int64)
        sync[:2] = 8 * self._phases, threads
        return sync, sync.__array_interface__["data"][0]

    def _start(self) -> None:
        self._owner, self._resting = os.getpid(), [Lock() for _ in range(self.threads - 1)]
        for index, resting in enumerate(self._resting, 1):
            resting.acquire()
            Thread(target=self._help, args=(index, resting), name=f"kernels-{index}", daemon=True).start()

    def _help(self, index: int, resting: Lock) -> None:
        while True:
            resting.acquire()
            function, first, arguments, _kept = self._job  # `_kept` lives until the next call
            function(index, first, *arguments)
