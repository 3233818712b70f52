"""Linear layers in eight-bit integers: rotation, quantization, products, and an exact target on kernels of our own.

Start at `cpu_target`.
"""
