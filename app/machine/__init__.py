"""The commands about this machine: what is ready to use, which models are present, which method is fastest.

Start at `doctor`.
"""
