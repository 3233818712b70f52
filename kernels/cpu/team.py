"""Several threads in one compiled call: who takes the next piece of work, and waiting for each other.

numba's own threading layers are left alone: one of them may be entered by a single thread at a time, another shares its
workers with torch. Here plain Python threads call the same compiled function without the interpreter's lock.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np
import numpy.typing as npt

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


class Team:
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
