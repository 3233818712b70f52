"""LLVM instructions for numba: what kernels need and numba's Python lacks (vectors of a fixed width, unchecked memory,
fma).

Vectors have sixteen floats on every processor, so a sum over lanes has one order everywhere; LLVM splits them where the
processor's are narrower. Nothing here permits reordering: the same numbers come out on every machine.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, get_type_hints

from llvmlite import ir
from numba import extending, njit, types
from numba.core import config

from kernels.cpu.processor import features_text

# Else numba asks LLVM, which does not name all that ARM's processors have.
vars(config).update(CPU_FEATURES=features_text())
intrinsic: Any = extending.intrinsic  # whose type says nothing of what becomes of its arguments
_tuple_of: Any = types.BaseTuple.from_types  # has no types
I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
LANES = 16
FLOATS, INTEGERS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


def kernel(function: Any = None, **options: Any) -> Any:
    """Compiles a function to run without the interpreter's lock.

    Without numba's checks for division by zero, too: they keep loops from being vectorised.
    """
    return njit(function, nogil=True, error_model="numpy", **options)


def constant(value: int) -> Any:
    """A 64-bit integer."""
    return ir.Constant(I64, value)


def splat(b: Any, scalar: Any, lanes: int = LANES) -> Any:
    """A vector that holds `scalar` in every lane."""
    kind = ir.VectorType(scalar.type, lanes)
    first = b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def pointer(b: Any, base: Any, *offsets: Any, to: Any) -> Any:
    """base + offsets, all in bytes, as a pointer to `to`."""
    for offset in offsets:
        base = b.add(base, offset)
    return b.inttoptr(base, to.as_pointer())


def load(b: Any, base: Any, *offsets: Any, kind: Any = FLOATS) -> Any:
    """A value from memory that need not be aligned."""
    value = b.load(pointer(b, base, *offsets, to=kind))
    value.align = 1
    return value


def store(b: Any, value: Any, base: Any, *offsets: Any) -> None:
    """A value into memory that need not be aligned."""
    b.store(value, pointer(b, base, *offsets, to=value.type)).align = 1


def prefetch(b: Any, base: Any, *offsets: Any) -> None:
    """Ask for a line of memory that will be read soon, wherever it is: an address that is not valid does no harm."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    name = "llvm.prefetch.p0"
    function = b.module.globals.get(name) or ir.Function(b.module, kind, name)
    is_write, locality, is_data = (ir.Constant(I32, value) for value in (0, 2, 1))
    b.call(function, [pointer(b, base, *offsets, to=I8), is_write, locality, is_data])


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    return _elementwise(b, "llvm.fma", x, y, z)


def _elementwise(b: Any, name: str, *values: Any) -> Any:
    """An intrinsic of LLVM's for floats or vectors of them."""
    kind = values[0].type
    suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
    function = b.module.declare_intrinsic(f"{name}.{suffix}", (), ir.FunctionType(kind, [kind] * len(values)))
    return b.call(function, values)


def loop(b: Any, count: Any, carried: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """`carried = body(index, carried)` for each index below `count`; returns what is carried in the end."""
    before = b.block
    head, inside, end = (b.append_basic_block(name) for name in ("head", "inside", "end"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    index.add_incoming(constant(0), before)
    kept = [b.phi(value.type) for value in carried]
    for phi, value in zip(kept, carried, strict=True):
        phi.add_incoming(value, before)
    b.cbranch(b.icmp_signed("<", index, count), inside, end)
    b.position_at_end(inside)
    following = body(index, list(kept))
    index.add_incoming(b.add(index, constant(1)), b.block)
    for phi, value in zip(kept, following, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(end)
    return kept


def page_and_next(b: Any, pages: Any, index: Any, count: Any) -> tuple[Any, Any]:
    """The addresses of a page and of the next one, or of the last again, of `count` whose addresses are at `pages`."""
    last = b.sub(count, constant(1))
    following = b.select(b.icmp_signed("<", index, last), b.add(index, constant(1)), last)
    this, soon = (load(b, pages, b.mul(each, constant(8)), kind=I64) for each in (index, following))
    return this, soon


def joined(b: Any, lanes: Any, join: Callable[[Any, Any, Any], Any]) -> Any:
    """Sixteen lanes as one: the second half joined to the first until one is left."""
    width = LANES
    while width > 1:
        width //= 2
        half = ir.VectorType(I32, width)
        low, high = (ir.Constant(half, list(range(at, at + width))) for at in (0, width))
        lanes = join(b, b.shuffle_vector(lanes, lanes, low), b.shuffle_vector(lanes, lanes, high))
    return b.extract_element(lanes, ir.Constant(I32, 0))


def _reduction(
    start: float, step: Callable[[Any, Any, Any], Any], join: Callable[[Any, Any, Any], Any], chains: int = 1
) -> Any:
    """(address, count) -> float over `count` floats, a multiple of 16: lane by lane, then the lanes in halves.

    chains: vectors that go side by side, so that one need not wait for the one before; for what has no order.
    """

    @intrinsic
    def reduce(typing: Any, address: Any, count: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            address, count = arguments
            vectors = b.sdiv(count, constant(LANES))
            whole = b.sdiv(vectors, constant(chains))

            def block(index: Any, lanes: list[Any]) -> list[Any]:
                at = b.mul(index, constant(4 * LANES * chains))
                return [
                    step(b, each, load(b, address, at, constant(4 * LANES * chain))) for chain, each in enumerate(lanes)
                ]

            def last(index: Any, lanes: list[Any]) -> list[Any]:
                at = b.mul(b.add(index, b.mul(whole, constant(chains))), constant(4 * LANES))
                return [step(b, lanes[0], load(b, address, at))]

            first = ir.Constant(FLOATS, [start] * LANES)
            lanes = loop(b, whole, [first] * chains, block)
            for other in lanes[1:]:
                lanes[0] = join(b, other, lanes[0])
            if chains > 1:
                lanes = loop(b, b.srem(vectors, constant(chains)), lanes[:1], last)
            return joined(b, lanes[0], join)

        return types.float32(types.intp, types.intp), codegen

    return reduce


def plus(b: Any, x: Any, y: Any) -> Any:
    """The sum of each pair of floats."""
    return b.fadd(x, y)


def greater(b: Any, x: Any, y: Any) -> Any:
    """The greater of each pair of floats."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def magnitude(b: Any, x: Any) -> Any:
    """|x|."""
    return _elementwise(b, "llvm.fabs", x)


add_squares = _reduction(0.0, lambda b, lanes, x: fma(b, x, x, lanes), plus)
largest = _reduction(float("-inf"), lambda b, lanes, x: greater(b, x, lanes), greater, 4)
largest_magnitude = _reduction(0.0, lambda b, lanes, x: greater(b, magnitude(b, x), lanes), greater, 4)


@intrinsic
def dot(typing: Any, x: Any, y: Any, count: Any) -> Any:
    """The sum of x[i] * y[i] over `count` floats, a multiple of 16: lane by lane, then the lanes in halves. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, y, count = arguments

        def body(index: Any, lanes: list[Any]) -> list[Any]:
            at = b.mul(index, constant(4 * LANES))
            return [fma(b, load(b, x, at), load(b, y, at), lanes[0])]

        (lanes,) = loop(b, b.sdiv(count, constant(LANES)), [ir.Constant(FLOATS, [0.0] * LANES)], body)
        return joined(b, lanes, plus)

    return types.float32(types.intp, types.intp, types.intp), codegen


def _memory(kind: Any, numba_kind: Any, size: int) -> tuple[Any, Any]:
    """get(address, index) and put(address, index, value) of one type."""

    @intrinsic
    def get(typing: Any, address: Any, index: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            address, index = arguments
            value = b.load(
                b.gep(pointer(b, address, to=kind), [index])
            )  # unlike added integers, a loop of these is vectorised
            value.align = size
            return value

        return numba_kind(types.intp, types.intp), codegen

    @intrinsic
    def put(typing: Any, address: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            address, index, value = arguments
            b.store(value, b.gep(pointer(b, address, to=kind), [index])).align = size
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, numba_kind), codegen

    return get, put


get, put = _memory(F32, types.float32, 4)
get_int, put_int = _memory(I32, types.int32, 4)
get_long, put_long = _memory(I64, types.int64, 8)
get_byte, put_byte = _memory(I8, types.uint8, 1)


@intrinsic
def read_record(typing: Any, table: Any, kind: Any) -> Any:
    """The record of a NamedTuple class at an address, from its numbers as `kernels.cpu.job.table_of` writes them."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        places = count()

        def read(record: Any) -> Any:
            return context.make_tuple(b, record, [number(each) for each in record.types])

        def number(each: Any) -> Any:
            if isinstance(each, types.BaseTuple):
                return read(each)
            return load(b, arguments[0], constant(8 * next(places)), kind=F32 if each == types.float32 else I64)

        return read(signature.return_type)

    return record_type(kind.instance_class)(types.intp, kind), codegen


def record_type(record: type) -> Any:
    """numba's type of a NamedTuple of int, float (fp32 in kernels) and further such records."""
    numbers = {int: types.int64, float: types.float32}
    fields = [numbers.get(kind) or record_type(kind) for kind in get_type_hints(record).values()]
    return _tuple_of(fields, record)


@intrinsic
def multiply_add(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z in fp32, rounded once."""
    kind = types.float32
    return kind(kind, kind, kind), lambda context, b, signature, arguments: fma(b, *arguments)


@intrinsic
def times_power_of_two(typing: Any, x: Any, exponent: Any) -> Any:
    """x * 2^exponent for an int32 that leaves the result a normal number."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, exponent = arguments
        return b.bitcast(b.add(b.bitcast(x, I32), b.shl(exponent, ir.Constant(I32, 23))), F32)

    return types.float32(types.float32, types.int32), codegen
