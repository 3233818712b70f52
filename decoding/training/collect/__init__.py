"""Collects the target's own decodings as training data, in shards or on a cluster.

Start at `collect`.
"""
