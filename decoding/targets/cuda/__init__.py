"""The forward on a GPU, with Triton kernels and CUDA graphs.

Start at `cuda_model`: `fast_target` keeps its books, as it does for the processor's forward.
"""
