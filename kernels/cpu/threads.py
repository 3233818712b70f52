"""What threads do inside a compiled call: take the next piece of work, and wait for each other. See `kernels.cpu.team`."""

import sys
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from kernels.cpu.emit import I32, I64, get_long, intrinsic, kernel
from kernels.cpu.processor import IS_ARM

_AWAKE = 2000  # looks at a counter before the processor is offered to others
_YIELDS = sys.platform != "win32"


@intrinsic
def _add_atomically(typing: Any, address: Any, amount: Any) -> Any:
    """The number at `address` before `amount` was added."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        address, amount = arguments
        return b.atomic_rmw("add", b.inttoptr(address, I64.as_pointer()), amount, "seq_cst")

    return types.intp(types.intp, types.intp), codegen


@intrinsic
def _read_atomically(typing: Any, address: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return b.load_atomic(b.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

    return types.intp(types.intp), codegen


@intrinsic
def _pause(typing: Any, offers: Any) -> Any:
    """Wait a moment; offers: let other processes have the processor."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        if _YIELDS:
            kind = ir.FunctionType(I32, [])
            known = b.module.globals.get("sched_yield") or ir.Function(b.module, kind, "sched_yield")
            with b.if_then(arguments[0]):
                b.call(known, [])
        name, arguments = ("llvm.aarch64.hint", [ir.Constant(I32, 1)]) if IS_ARM else ("llvm.x86.sse2.pause", [])
        pause = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
        b.call(b.module.globals.get(name) or ir.Function(b.module, pause, name), arguments)
        return context.get_dummy_value()

    return types.void(types.boolean), codegen


@kernel
def _counter(sync, row, phase):  # type: ignore[no-untyped-def]
    """Where a counter of a phase is; row 0: pieces done, 1: pieces taken by anyone, from 2 on: taken of a thread's own."""
    return sync + 16 + row * get_long(sync, 0) + 8 * phase


@kernel
def claim(sync, phase):  # type: ignore[no-untyped-def]
    """The next piece of a phase that nobody has taken: 0, 1, 2, ...; there may be no such piece."""
    return _add_atomically(_counter(sync, 1, phase), 1)


@kernel
def first_own(pieces, thread, threads):  # type: ignore[no-untyped-def]
    """The first piece that a thread takes by itself; those from there up to the first one of the next thread are its own."""
    return pieces * thread // threads


@kernel
def claim_own(sync, phase, pieces, thread):  # type: ignore[no-untyped-def]
    """The next of the thread's own pieces, one after another; then what is left of the others'; `pieces`: none is left."""
    threads = get_long(sync, 1)
    for turn in range(threads):
        owner = (thread + turn) % threads
        first, stop = first_own(pieces, owner, threads), first_own(pieces, owner + 1, threads)
        taken = _counter(sync, 2 + owner, phase)
        if first + _read_atomically(taken) < stop:
            piece = first + _add_atomically(taken, 1)
            if piece < stop:
                return piece
    return pieces


@kernel
def meet(sync, phase, done, pieces):  # type: ignore[no-untyped-def]
    """Say how many pieces of a phase this thread has done, and wait until all of them are."""
    finished, looks = _counter(sync, 0, phase), 0
    if done:
        _add_atomically(finished, done)
    while _read_atomically(finished) < pieces:
        looks += 1
        _pause(looks > _AWAKE)
