"""Whether a Triton kernel or its plain-torch reference does the work."""

import triton
from torch import Tensor


def on_triton(tensor: Tensor) -> bool:
    """True on CUDA, and anywhere while Triton's interpreter is on (TRITON_INTERPRET=1 when this was imported, and still)."""
    return tensor.is_cuda or bool(triton.knobs.runtime.interpret)


def padded(size: int, least: int = 16) -> int:
    """The next power of two, and at least what a matrix product of Triton takes."""
    return max(least, 1 << (size - 1).bit_length())
