"""Which kernels this processor runs."""

from functools import cache
from typing import Any, Literal

import numba
from llvmlite import binding

Variant = Literal["avx512_vnni", "avx_vnni", "avx2"]


@cache
def variant() -> Variant | None:
    """The best kernels for the processor, or for the one that `NUMBA_CPU_FEATURES` names; None where it has none of
    them.
    """
    features = _features()
    if {"avx512vnni", "avx512bw", "avx512vl"} <= features:
        return "avx512_vnni"
    if not {"avx2", "fma"} <= features:
        return None
    return "avx_vnni" if "avxvnni" in features else "avx2"


def _features() -> set[str]:
    config: Any = numba.config
    if config.CPU_FEATURES is not None:
        return {name[1:] for name in config.CPU_FEATURES.split(",") if name.startswith("+")}
    return {name for name, has in binding.get_host_cpu_features().items() if has}
