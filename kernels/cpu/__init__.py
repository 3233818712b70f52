"""Kernels for processors, in numba: a forward in eight-bit integers whose sums have one fixed order.

Start at `products.int8_products` and `int8_attention`. Every kernel has a plain numpy reference (`..._reference`), which its
test compares it with. Kernels take addresses instead of arrays, because a slice of an array costs as much as a small
kernel.
"""
