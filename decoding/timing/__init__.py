"""Measures how long this machine takes, and remembers which method is fastest on it.

Start at `forward_timing`.
"""
