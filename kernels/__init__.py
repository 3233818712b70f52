"""Triton kernels with their plain-torch references; imports torch and triton only. Start at `tree_attention`.

transformers probes an import named ``kernels`` when it loads, so this module imports nothing and carries a version.
"""

__version__ = "0"
