"""One step of a product, for each kind of processor: four inputs of a row times those of sixteen outputs, added to sums.

AVX2 has no such instruction: see `word_products`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir

from kernels.cpu.emit import I8, I32, constant, load, splat, store
from kernels.cpu.job import GROUP, STEP
from kernels.cpu.processor import Variant

_TAKES_BYTES = binding.llvm_version_info[0] >= 21  # the type of the dot product's operands changed in LLVM 21


class _DotProducts:
    """`vpdpbusd`: four products of a lane added to its sum in one instruction."""

    def __init__(self, kind: Variant) -> None:
        self.lanes = 8 if kind == "avx_vnni" else 16  # sums of a register
        self.parts = GROUP // self.lanes  # registers of a group
        self.sums = ir.VectorType(I32, self.lanes)
        self._operand = ir.VectorType(I8, 4 * self.lanes) if _TAKES_BYTES else self.sums
        self._name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"

    def weights(self, b: Any, address: Any) -> list[Any]:
        parts = (load(b, address, constant(4 * self.lanes * part), kind=self.sums) for part in range(self.parts))
        return [b.bitcast(part, self._operand) for part in parts]

    def inputs(self, b: Any, four: Any) -> Any:
        return b.bitcast(splat(b, four, self.lanes), self._operand)

    def add(self, b: Any, total: Any, inputs: Any, weights: Any) -> Any:
        kind = ir.FunctionType(self.sums, [self.sums, self._operand, self._operand])
        return b.call(b.module.declare_intrinsic(self._name, (), kind), [total, inputs, weights])

    def write(self, b: Any, sums: Sequence[Any], address: Any) -> None:
        for part, total in enumerate(sums):
            store(b, total, address, constant(4 * self.lanes * part))


class _Fours:
    """Sums of four outputs in a register of 128 bits."""

    lanes, parts, sums = 4, 4, ir.VectorType(I32, 4)
    _bytes = ir.VectorType(I8, 16)

    def __init__(self, kind: Variant) -> None:
        self._kind = kind

    def weights(self, b: Any, address: Any) -> list[Any]:
        return [load(b, address, constant(16 * part), kind=self._bytes) for part in range(self.parts)]

    def inputs(self, b: Any, four: Any) -> Any:
        return b.bitcast(splat(b, four, 4), self._bytes)

    def write(self, b: Any, sums: Sequence[Any], address: Any) -> None:
        for part, total in enumerate(sums):
            store(b, total, address, constant(16 * part))

    def _dots(self, b: Any, name: str, *operands: Any) -> Any:
        kind = ir.FunctionType(self.sums, [self.sums, self._bytes, self._bytes])
        return b.call(b.module.declare_intrinsic(f"llvm.aarch64.neon.{name}.v4i32.v16i8", (), kind), operands)


class _MixedDots(_Fours):
    """ARM's `usdot`: four products of unsigned and signed bytes added to a lane."""

    def add(self, b: Any, total: Any, inputs: Any, weights: Any) -> Any:
        return self._dots(b, "usdot", total, inputs, weights)


class _SignedDots(_Fours):
    """ARM's `sdot`, of signed bytes: an input minus 128; what that takes away is added again, once for all rows."""

    _low = ir.Constant(ir.VectorType(I8, 16), [-128] * 16)

    def weights(self, b: Any, address: Any) -> list[Any]:
        zero = ir.Constant(self.sums, [0] * 4)
        return [(part, self._dots(b, "sdot", zero, self._low, part)) for part in super().weights(b, address)]

    def inputs(self, b: Any, four: Any) -> Any:
        return b.xor(super().inputs(b, four), self._low)

    def add(self, b: Any, total: Any, inputs: Any, weights: Any) -> Any:
        part, taken = weights
        return b.sub(self._dots(b, "sdot", total, inputs, part), taken)


class _Plain(_Fours):
    """No instruction of any processor's own."""

    def add(self, b: Any, total: Any, inputs: Any, weights: Any) -> Any:
        wide = ir.VectorType(I32, 16)
        each = b.mul(b.zext(inputs, wide), b.sext(weights, wide))
        for place in range(STEP):
            total = b.add(total, b.shuffle_vector(each, each, ir.Constant(self.sums, list(range(place, 16, STEP)))))
        return total


EMITTERS: dict[Variant, Callable[[Variant], Any]] = {
    "amx_int8": _DotProducts,
    "avx512_vnni": _DotProducts,
    "avx_vnni": _DotProducts,
    "neon_i8mm": _MixedDots,
    "neon_dot": _SignedDots,
    "generic": _Plain,
}
