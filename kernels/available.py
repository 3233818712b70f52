"""Whether our kernels can run on a device, or on this processor."""

from functools import cache
from importlib.util import find_spec

import torch

_HAS_TRITON = find_spec("triton") is not None  # torch has CUDA on systems for which there is no Triton


def runs_kernels(device: torch.device | str) -> bool:
    """True on CUDA where Triton is installed."""
    return _HAS_TRITON and torch.device(device).type == "cuda"


@cache
def runs_cpu_kernels() -> bool:
    """Whether numba is here and the processor has what `kernels.cpu` needs: AVX2, or better."""
    try:
        from kernels.cpu.processor import variant
    except ImportError:
        return False
    return variant() is not None
