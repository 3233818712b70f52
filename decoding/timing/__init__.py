"""Measures how long forwards take on this machine.

Start at `forward_timing`.
"""
