"""Runs work in a short-lived thread, so that only the decoding thread owns an OpenMP pool.

libgomp, which runs torch's operators, counts the workers of every thread that ever computed in parallel. Once there are more
of them than processors, all of them sleep between two operators instead of spinning: a step of the embedded model took 35 ms
instead of 25 (int8, two cores) after the main thread had loaded it. Workers end with the thread that they work for.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Done = TypeVar("Done")


def in_own_thread(do: Callable[[], Done]) -> Done:
    """What `do` returns or raises."""
    with ThreadPoolExecutor(1, "apart") as thread:
        return thread.submit(do).result()
