"""Who may keep processors busy: work in a short-lived thread, so that only the decoding thread owns an OpenMP pool, and torch
on one thread while our own kernels run.

libgomp, which runs torch's operators, counts the workers of every thread that ever computed in parallel. Once there are more
of them than processors, all of them sleep between two operators instead of spinning: a step of the embedded model took 35 ms
instead of 25 (int8, two cores) after the main thread had loaded it. Workers end with the thread that they work for.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Done = TypeVar("Done")


def in_own_thread(do: Callable[[], Done]) -> Done:
    """What `do` returns or raises."""
    with ThreadPoolExecutor(1, "apart") as thread:
        return thread.submit(do).result()


_here = threading.local()


def hold_torch_to_one_thread() -> None:
    """Torch computes on one thread from now on where this thread calls it; other threads keep as many as they had.

    Does nothing where torch is not imported. Its workers spin between two operators, on processors that our own kernels
    need. It must not be done and undone for every forward: `set_num_threads` starts a new pool of threads, which look for
    work for about 80 ms, and forwards at the same time took up to twice as long (log/cpu-kernels.md).
    """
    torch = sys.modules.get("torch")
    if getattr(_here, "is_held", False) or torch is None or not hasattr(torch, "set_num_threads"):
        return  # `torch` without the function is still being imported
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)  # of this thread, and of those to come
        in_own_thread(lambda: torch.set_num_threads(before))  # of those to come
    _here.is_held = True
