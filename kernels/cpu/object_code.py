"""A kernel as object code, which is kept on disk and called later without numba: importing numba, and its look at the types
of a call's arguments, take several times as long as loading the code.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding

from kernels.cpu.processor import cpu_name, features_text


class ObjectCode(NamedTuple):
    """symbol: the function's name in it. arguments: how many 64-bit integers the function takes."""

    symbol: str
    arguments: int
    code: bytes


def compile_kernel(function: Any) -> ObjectCode:
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


def loaded(kernel: ObjectCode) -> Callable[..., None]:
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
