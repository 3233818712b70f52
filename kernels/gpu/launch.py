"""Decides between a Triton kernel and its plain-torch reference."""

import triton
from torch import Tensor


def on_triton(tensor: Tensor) -> bool:
    """True on CUDA, and anywhere while Triton's interpreter is on (TRITON_INTERPRET=1 since before this was imported)."""
    return tensor.is_cuda or bool(triton.knobs.runtime.interpret)


def padded(size: int, least: int = 16) -> int:
    """The next power of two, but at least `least`: Triton's matrix products take no smaller sizes than 16."""
    return max(least, 1 << (size - 1).bit_length())
