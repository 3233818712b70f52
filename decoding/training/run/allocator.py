"""Tunes the C library's allocator for the memory that every pack takes and frees."""

import ctypes
import sys

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Keep freed memory in the process; otherwise glibc returns it, and the kernel zeroes it again for the next pack.

    Does nothing if the C library has no mallopt. This is for long runs that own their process.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_TOP_PAD, 2**28)
