"""Decodings of the target collected as training data, in shards or on a cluster.

Start at `collect`.
"""
