"""Whether our kernels can run on a device."""

from importlib.util import find_spec

import torch

_HAS_TRITON = find_spec("triton") is not None  # torch has CUDA on systems for which there is no Triton


def runs_kernels(device: torch.device | str) -> bool:
    """True on CUDA where Triton is installed."""
    return _HAS_TRITON and torch.device(device).type == "cuda"
