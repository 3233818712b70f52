"""Kernels that Python calls, compiled once into the user's cache and loaded from there afterwards as object code.

That needs no numba: importing it, and its look at the types of a call's arguments, take several times as long.
"""

import ctypes
import hashlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from llvmlite import binding

from decoding.checkpoints.cache_folder import cache_root, written_whole
from decoding.targets.int8.packed_model import keep_newest
from kernels import cpu as cpu_kernels
from kernels.cpu.processor import cpu_name, features_text, variant

FORWARD = "forward:forward"


class ObjectCode(NamedTuple):
    """symbol: the function's name in it. arguments: how many 64-bit integers the function takes."""

    symbol: str
    arguments: int
    code: bytes


@cache
def compiled(place: str) -> Callable[..., None]:
    """A function of `kernels.cpu`, "module:function" (modules below it too), all of whose arguments are integers.

    Compiled now unless the cache has it for this processor.
    """
    file = _file(place)
    if (found := _read(file)) is None:
        module, name = place.split(":")
        found = _compiled_now(getattr(import_module(f"{cpu_kernels.__name__}.{module}"), name))
        _keep(file, found)
    return _called(found)


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
    return cache_root() / "kernels" / source_key() / f"{place.replace(':', '.')}-{_processor_key()}.o"


@cache
def source_key() -> str:
    digest = hashlib.sha256(f"{version('numba')} {version('llvmlite')}".encode())
    for file in sorted(Path(cpu_kernels.__path__[0]).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _processor_key() -> str:
    return hashlib.sha256(f"{sys.platform} {cpu_name()} {features_text()} {variant()}".encode()).hexdigest()[:16]


def _compiled_now(function: Any) -> ObjectCode:
    """A function of `kernels.cpu`, for this processor or the one that numba's variables name; takes seconds.

    All of its arguments become 64-bit integers: addresses, counts, and truths.
    """
    from numba import types
    from numba.core.registry import cpu_target

    from kernels.cpu.emit import kernel

    plain = function.py_func
    arguments = plain.__code__.co_argcount
    signature = (types.int64,) * arguments
    bare = kernel(plain, no_cpython_wrapper=True, no_cfunc_wrapper=True)
    bare.compile(signature)
    triple, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    machine = binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )
    code = machine.emit_object(binding.parse_assembly(bare.inspect_llvm(signature)))
    return ObjectCode(bare.overloads[signature].fndesc.llvm_func_name, arguments, code)


def _called(kernel: ObjectCode) -> Callable[..., None]:
    """The function of object code, which runs without the interpreter's lock. Raises RuntimeError where it is damaged."""
    engine = _engine()
    engine.add_object_file(binding.ObjectFileRef.from_data(kernel.code))
    engine.finalize_object()
    # numba's functions first take the places of their result and of an exception; these have neither.
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * kernel.arguments)
    return _Loaded(engine, kind(engine.get_function_address(kernel.symbol)))


class _Loaded:
    """A function, and the memory that it needs."""

    def __init__(self, engine: Any, function: Callable[..., None]) -> None:
        self._engine, self._unused = engine, np.zeros(2, np.int64)
        first = self._unused.__array_interface__["data"][0]
        self._function = partial(function, first, first + 8)

    def __call__(self, *arguments: int) -> None:
        self._function(*arguments)


def _engine() -> Any:
    """Room for one object, with nothing in it."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    machine = target.create_target_machine(cpu=cpu_name(), features=features_text(), jit=True, codemodel="jitdefault")
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
