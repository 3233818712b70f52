"""Reads published heads into ours: one file per family of layouts.

Start at `layout`, which holds what they share.
"""
