"""Heads on our own kernels for processors: weights in eight bits, numpy in and numpy out.

Start at `weights`; `packing` makes them from a head's module. What each kind does with them has a module of its own.
"""
