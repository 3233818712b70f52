"""Whether our kernels can run on a device, or on this processor."""

import ctypes
import importlib
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_HAS_TRITON = find_spec("triton") is not None  # torch has CUDA on systems for which there is no Triton


def runs_kernels(device: object) -> bool:
    """True on CUDA (a torch device, or its name) where Triton is installed."""
    return _HAS_TRITON and str(device).startswith("cuda")


@cache
def has_gpu() -> bool:
    """Whether torch is here and can compute on a GPU. It is asked only where a driver is: importing it takes a second."""
    return has_gpu_driver() and find_spec("torch") is not None and importlib.import_module("torch").cuda.is_available()


def has_gpu_driver() -> bool:
    """CUDA's library, or the device of AMD's driver."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()
    return True


@cache
def runs_cpu_kernels() -> bool:
    """Whether numba is here and the processor has what `kernels.cpu` needs: AVX2 or better, or ARM under Linux."""
    if find_spec("numba") is None:
        return False
    try:
        from kernels.cpu.processor import variant
    except (ImportError, OSError):  # llvmlite's library does not load here
        return False
    return variant() is not None
