"""How long this machine takes, and which method is fastest on it.

Start at `forward_timing`.
"""
