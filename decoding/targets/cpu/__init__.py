"""The int8 forward on a processor in our own kernels: an exact target whose rows cost little.

Start at `cpu_target`.
"""
