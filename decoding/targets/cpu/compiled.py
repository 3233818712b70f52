"""The forward, compiled once into the user's cache and loaded from there afterwards."""

import hashlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
from numba import njit

import kernels.cpu
from decoding.checkpoints.fetch.cache_folder import cache_root
from decoding.targets.cpu import forward as source


@cache
def compiled_forward() -> Callable[..., None]:
    """`forward`, which compiles itself at its first call unless the cache has it for this processor."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_folder())  # read when a function is decorated
    try:
        return _cached(source.forward.py_func)
    finally:
        numba.config.CACHE_DIR = before


def is_compiled() -> bool:
    """Whether the cache has it, for this processor or another one."""
    return any(_folder().rglob("*.nbc"))


def _folder() -> Path:
    return cache_root() / "kernels" / _key()


def _cached(function: Any) -> Callable[..., None]:
    try:
        return njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # nowhere to write: compiled in every process
        return njit(nogil=True)(function)  # type: ignore[no-any-return]


def _key() -> str:
    """Of all that is compiled: numba itself looks at one file only."""
    files = [Path(source.__file__), *sorted(Path(kernels.cpu.__path__[0]).glob("*.py"))]
    digest = hashlib.sha256(version("numba").encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
