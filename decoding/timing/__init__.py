"""Measures how long forwards take on this machine, and remembers which method is fastest on it.

Start at `forward_timing`.
"""
