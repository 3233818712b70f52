"""Triton kernels for GPUs, each with a plain-torch reference."""
