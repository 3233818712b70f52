"""Linear layers in eight-bit integers: rotation, quantization, products.

Start at `linear`.
"""
