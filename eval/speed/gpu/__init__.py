"""Times kernels and whole forwards on a GPU.

Start at `run`.
"""
