"""How fast plain decoding can be at most on this machine: every token reads all matrices of the model from memory once."""

import os
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

_READ_BYTES = 256 << 20  # more than a processor's caches hold
_REPEATS = 5


def measured_bytes_per_s() -> float:
    """Bytes that this machine's processors read from memory in a second, all at once; the best of several runs."""
    threads = os.cpu_count() or 1
    parts = np.array_split(np.ones(_READ_BYTES // 8, dtype=np.int64), threads)
    with ThreadPoolExecutor(threads) as pool:
        return max(_READ_BYTES / _seconds(pool, parts) for _ in range(_REPEATS))


def _seconds(pool: ThreadPoolExecutor, parts: "list[np.ndarray[tuple[int], np.dtype[np.int64]]]") -> float:
    start = perf_counter()
    list(pool.map(np.max, parts))
    return perf_counter() - start


def most_tokens_per_s(parameters: int, parameter_bytes: float, bytes_per_s: float) -> float:
    """Tokens per second without drafts, if nothing but reading takes time.

    >>> most_tokens_per_s(7_000_000_000, 1, 14e9)
    2.0
    """
    return bytes_per_s / (parameters * parameter_bytes)
