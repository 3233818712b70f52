"""Kernels without models: Triton's for GPUs, each with its torch reference (start at `tree_attention`), and `cpu/`, which
numba compiles for int8 on processors.

transformers probes an import named ``kernels`` when it loads, so this module imports nothing and carries a version.
"""

__version__ = "0"
