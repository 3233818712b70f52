"""Who may keep processors busy: work in a short-lived thread, so that only the decoding thread owns an OpenMP pool, and torch
on one thread beside our own kernels.

libgomp, which runs torch's operators, counts the workers of every thread that ever computed in parallel. Once there are more
of them than processors, all of them sleep between two operators instead of spinning: a step of the embedded model took 35 ms
instead of 25 (int8, two cores) after the main thread had loaded it. Workers end with the thread that they work for.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Done = TypeVar("Done")


def in_own_thread(do: Callable[[], Done]) -> Done:
    """What `do` returns or raises."""
    with ThreadPoolExecutor(1, "apart") as thread:
        return thread.submit(do).result()


@contextmanager
def torch_on_one_thread(when: bool = True) -> Iterator[None]:
    """Inside, torch computes on one thread; afterwards on as many as before. Does nothing where torch is not imported.

    Between two operators its workers spin, on processors that our own kernels need: texts came 2.21 times as fast as plain
    ones with two threads, 2.41 times with one (log/2026-11-23-cpu-kernels.md).
    """
    torch = sys.modules.get("torch") if when else None
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
