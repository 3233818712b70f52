"""Which kernels this processor runs. Imports no numba, but reads its variables, so that another processor can be named."""

import ctypes
import os
import platform
import sys
from functools import cache
from typing import Literal

from llvmlite import binding

Variant = Literal["amx_int8", "avx512_vnni", "avx_vnni", "avx2", "neon_i8mm", "neon_dot", "generic"]
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64: asm/unistd_64.h, asm/prctl.h
_DOT_PRODUCTS = (
    ("+dotprod", 16, 20),
    ("+i8mm", 26, 13),
)  # word of the auxiliary vector and its bit: asm/hwcap.h of arm64
IS_ARM = platform.machine().lower() in ("aarch64", "arm64")


@cache
def variant() -> Variant | None:
    """The best kernels for the processor, or for the one that `NUMBA_CPU_FEATURES` names; None where it has none of
    them.

    ARM's gave the same bits as x86's in an emulator, on Linux (`tests/kernels/cpu/arm/check.sh`). No other system has loaded
    them: there they are taken only where SQLAGENT_ARM_KERNELS=on says so, and on Linux "off" leaves them out.
    """
    features = {name[1:] for name in features_text().split(",") if name.startswith("+")}
    if IS_ARM:
        best: Variant = "neon_i8mm" if "i8mm" in features else "neon_dot" if "dotprod" in features else "generic"
        usual = "on" if sys.platform.startswith("linux") else "off"
        return best if os.environ.get("SQLAGENT_ARM_KERNELS", usual) == "on" else None
    if {"avx512vnni", "avx512bw", "avx512vl"} <= features:
        return "amx_int8" if "amx-int8" in features and tiles_permitted() else "avx512_vnni"
    if not {"avx2", "fma"} <= features:
        return None
    return "avx_vnni" if "avxvnni" in features else "avx2"


@cache
def tiles_permitted() -> bool:
    """Whether this process may use AMX tiles: Linux wants to be asked once, for all threads; other systems are not tried."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def cpu_name() -> str:
    """As LLVM calls the processor."""
    return os.environ.get("NUMBA_CPU_NAME") or str(binding.get_host_cpu_name())


@cache
def features_text() -> str:
    """What the processor has and lacks, as LLVM writes it: "+avx2,-sse4a". kernels.cpu.emit tells numba, too."""
    given = os.environ.get("NUMBA_CPU_FEATURES")
    without = ["-sve"] if IS_ARM else []  # in an emulator Domino's guesses are others with it
    return ",".join([*_dot_products(), *_host_features(), *without]) if given is None else given


def _host_features() -> list[str]:
    text = str(binding.get_host_cpu_features().flatten())
    return text.split(",") if text else []


def _dot_products() -> list[str]:
    """Those that Linux names on ARM and LLVM 22 does not, also where it knows the processor."""
    if not (IS_ARM and sys.platform.startswith("linux")):
        return []
    asked = ctypes.CDLL(None).getauxval
    asked.restype, asked.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return [name for name, word, bit in _DOT_PRODUCTS if asked(word) >> bit & 1]
