"""Compiles every kernel for an H100 or H200, on any machine: `python -m tests.kernels.compiled` prints one line for each.

The interpreter accepts what the compiler does not. Wrappers run unchanged, on the CPU, with launches that stop after
compiling; their results are ignored.
"""

import re
import warnings
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from kernels.gpu import choice, compaction, domino, low_bit_product, norm, tree_attention
from kernels.gpu import norm as adapted_norm
from kernels.gpu import norm as gate
from kernels.gpu import tree_attention as rope
from kernels.gpu.low_bit import LowBit
from kernels.gpu.ragged import Ragged, SequenceRows

HOPPER = GPUTarget("cuda", 90, 32)


class Driver:
    """What the compiler asks of a driver."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return HOPPER


def only_compile() -> None:
    """Let every launch end with the compiled kernel, and wrappers take CPU tensors for the GPU's."""
    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = launch(self, *args, grid=grid, warmup=True, **options)
        registers = compiled.asm["ptx"].count("ld.local") + compiled.asm["ptx"].count("st.local")
        wide = compiled.asm["ptx"].count(".v4.b32") + compiled.asm["ptx"].count("cp.async.cg")
        products = sorted(set(re.findall(r"(?:wgmma|mma)\.[\w.]+", compiled.asm["ptx"])))
        print(
            f"{self.__name__}: shared {compiled.metadata.shared} B, 16-byte accesses {wide}, local {registers}, {products}",
            flush=True,
        )
        return compiled

    JITFunction.run = run
    triton.runtime.driver.set_active(Driver())
    for module in (adapted_norm, choice, compaction, domino, gate, low_bit_product, norm, rope, tree_attention):
        module.on_triton = lambda tensor: True  # type: ignore[attr-defined]


def random_low_bit(size: int, bits: int, group: int) -> LowBit:
    """Of 4 bits, in groups, with zero points; or in FP8."""
    numbers = torch.empty(size, size * bits // 8, dtype=torch.uint8)
    scale = torch.empty(size, size // group, dtype=torch.bfloat16)
    zero = torch.empty(size, size // group, dtype=torch.uint8) if bits == 4 else None
    return LowBit(numbers if zero is not None else numbers.view(torch.float8_e4m3fn), scale, zero, bits, size, group)


def compile_all(dtype: torch.dtype) -> None:
    """With the shapes of a 7B model, a tree of 16 behind 100 tokens."""
    heads, kv_heads, dim, hidden = 28, 4, 128, 3584
    table = torch.empty(2 * kv_heads, 256, dim, dtype=dtype)
    seen = torch.ones(16, 16, dtype=torch.bool).tril()
    ragged = Ragged.of([SequenceRows(table, 100, [0] * 16, [0] * 16, seen)])
    x, turn = torch.empty(16, hidden, dtype=dtype), torch.empty(16, dim, dtype=dtype)
    norm.add_rms_norm(x, x, x[0], 1e-6)
    factors = torch.empty(64, hidden, dtype=dtype)
    adapted_norm.adapt_and_norm(x, x, torch.empty(16, dtype=torch.bool), factors, factors, x[0], 1e-6)
    gate.gated(torch.empty(16, 18944 * 2, dtype=dtype))
    for rows, bits, group in ((1, 4, 32), (64, 4, 128), (16, 8, hidden), (64, 8, 128)):
        low_bit_product.low_bit_product(torch.empty(rows, hidden, dtype=dtype), random_low_bit(hidden, bits, group))
    qkv = torch.empty(16, heads + 2 * kv_heads, dim, dtype=dtype)
    query = rope.rotate_and_store(qkv, turn, turn, turn, ragged, 1, kv_heads, 1e-6)
    for splits in (1, 16):
        tree_attention.tree_attention(query, ragged, 1, kv_heads, splits)
    small = torch.empty(2 * kv_heads + 1, 256, dim, dtype=torch.uint8)
    fp8 = Ragged.of([SequenceRows(small, 100, [0] * 16, [0] * 16, seen)], scales_at=2 * kv_heads)
    query = rope.rotate_and_store(qkv, turn, turn, turn, fp8, 0, kv_heads, 1e-6)
    tree_attention.tree_attention(query, fp8, 0, kv_heads, 16)
    compaction.compact([compaction.Move(table, 100, [0, 2, 5])])
    logits, number = torch.empty(16, 152064), torch.zeros(16, dtype=torch.long)
    choice.choose(logits, logits[:, 0].contiguous(), number, number)
    correction = domino.Correction(
        *(torch.empty(n, m, dtype=dtype) for n, m in ((600, 3072), (256 + 3072, 1024), (600, 256)))
    )
    domino.correct_chain(
        torch.empty(2, 600),
        torch.arange(600),
        torch.empty(2, 256, dtype=dtype),
        torch.empty(1024, dtype=dtype),
        correction,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    only_compile()
    compile_all(torch.bfloat16)
