"""Kernels that Python calls, compiled once into the user's cache and loaded from there afterwards, without numba."""

import hashlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from zlib import crc32

import kernels.cpu
from decoding.checkpoints.fetch.cache_folder import cache_root, written_whole
from decoding.targets.int8.packed_model import keep_newest
from kernels.cpu.object_code import ObjectCode, compile_kernel, loaded
from kernels.cpu.processor import cpu_name, features_text

FORWARD = "forward:forward"


@cache
def compiled(place: str) -> Callable[..., None]:
    """A function of `kernels.cpu`, "module:function", all of whose arguments are integers.

    Compiled now unless the cache has it for this processor.
    """
    file = _file(place)
    if (found := _read(file)) is None:
        module, name = place.split(":")
        found = compile_kernel(getattr(import_module(f"kernels.cpu.{module}"), name))
        _keep(file, found)
    return loaded(found)


def is_compiled() -> bool:
    """Whether the cache has the forward of a model for this processor."""
    return _file(FORWARD).is_file()


def _read(file: Path) -> ObjectCode | None:
    """None where the file is not there, or is damaged."""
    try:
        head, _, code = file.read_bytes().partition(b"\n")
        symbol, arguments, checksum = head.decode().split()
        return ObjectCode(symbol, int(arguments), code) if int(checksum) == crc32(code) else None
    except (OSError, ValueError):
        return None


def _keep(file: Path, kernel: ObjectCode) -> None:
    """A line with the symbol, the number of arguments and the code's checksum, then the code."""
    head = f"{kernel.symbol} {kernel.arguments} {crc32(kernel.code)}\n".encode()
    try:
        written_whole(file, head + kernel.code)
    except OSError as error:
        print(f"sqlagent: kernels cannot be kept in {file.parent} ({error.strerror}); going on", file=sys.stderr)
        return
    with suppress(OSError):
        keep_newest(file.parents[1])


def _file(place: str) -> Path:
    """By a digest of all that is compiled, and by the processor."""
    return cache_root() / "kernels" / _source_key() / f"{place.replace(':', '.')}-{_processor_key()}.o"


@cache
def _source_key() -> str:
    digest = hashlib.sha256(f"{version('numba')} {version('llvmlite')}".encode())
    for file in sorted(Path(kernels.cpu.__path__[0]).glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _processor_key() -> str:
    return hashlib.sha256(f"{sys.platform} {cpu_name()} {features_text()}".encode()).hexdigest()[:16]
