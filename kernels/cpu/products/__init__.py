"""Exact products of eight-bit inputs and packed weights. Start at `int8_products`."""
