"""The fast target on a GPU, with Triton kernels and CUDA graphs.

Start at `cuda_target`.
"""
