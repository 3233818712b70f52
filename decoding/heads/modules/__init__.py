"""The networks of the heads: one file for each architecture, and the layers that they share.

Start at `layer`.
"""
