"""Collects the target's own decodings as training data, here or on a cluster.

Start at `collect`.
"""
