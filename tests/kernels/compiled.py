"""Compiles every kernel for an H100 or H200, on any machine: `python -m tests.kernels.compiled` prints one line for each.

The interpreter accepts what the compiler does not. Wrappers run unchanged, on the CPU, with launches that stop after
compiling; their results are ignored.
"""

import warnings
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from kernels import choice, compaction, domino, gate, norm, rope, tree_attention
from kernels.ragged import Ragged, SequenceRows

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
        print(
            f"{self.__name__}: shared {compiled.metadata.shared} B, 16-byte accesses {wide}, local {registers}",
            flush=True,
        )
        return compiled

    JITFunction.run = run
    triton.runtime.driver.set_active(Driver())
    for module in (choice, compaction, domino, gate, norm, rope, tree_attention):
        module.on_triton = lambda tensor: True  # type: ignore[attr-defined]


def compile_all(dtype: torch.dtype) -> None:
    """With the shapes of a 7B model, a tree of 16 behind 100 tokens."""
    heads, kv_heads, dim, hidden = 28, 4, 128, 3584
    table = torch.empty(2 * kv_heads, 256, dim, dtype=dtype)
    seen = torch.ones(16, 16, dtype=torch.bool).tril()
    ragged = Ragged.of([SequenceRows(table, 100, [0] * 16, [0] * 16, seen)])
    x, turn = torch.empty(16, hidden, dtype=dtype), torch.empty(16, dim, dtype=dtype)
    norm.add_rms_norm(x, x, x[0], 1e-6)
    gate.gated(torch.empty(16, 18944 * 2, dtype=dtype))
    qkv = torch.empty(16, heads + 2 * kv_heads, dim, dtype=dtype)
    query = rope.rotate_and_store(qkv, turn, turn, turn, ragged, 1, kv_heads, 1e-6)
    for splits in (1, 16):
        tree_attention.tree_attention(query, ragged, 1, kv_heads, splits)
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
