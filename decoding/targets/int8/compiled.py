"""Kernels that Python calls, compiled once into the user's cache and loaded from there afterwards."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba

import kernels.cpu
from decoding.checkpoints.fetch.cache_folder import cache_root
from decoding.targets.int8.packed_model import keep_newest
from kernels.cpu import forward as source
from kernels.cpu.emit import kernel


@cache
def compiled(function: Any) -> Callable[..., None]:
    """A function of `kernels.cpu`, which compiles itself at its first call unless the cache has it for this processor."""
    with suppress(OSError):
        keep_newest(_folder().parent)
    config: Any = numba.config
    before, config.CACHE_DIR = config.CACHE_DIR, str(_folder())  # read when a function is decorated
    try:
        return _cached(function.py_func)
    finally:
        config.CACHE_DIR = before


def compiled_forward() -> Callable[..., None]:
    """The forward of a model."""
    return compiled(source.forward)


def is_compiled() -> bool:
    """Whether the cache has the forward, for this processor or another one."""
    return any(_folder().rglob("forward.forward*.nbc"))


def _folder() -> Path:
    return cache_root() / "kernels" / _key()


def _cached(function: Any) -> Callable[..., None]:
    compiled: Callable[..., None]
    try:
        compiled = kernel(function, cache=True)
    except RuntimeError:  # nowhere to write: compiled in every process
        compiled = kernel(function)
    return compiled


def _key() -> str:
    """A digest of all files that are compiled: numba itself looks at one file only."""
    files = sorted(Path(kernels.cpu.__path__[0]).glob("*.py"))
    digest = hashlib.sha256(version("numba").encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
