"""Commands about this machine: what is installed and ready, which models are here, which method is fastest.

Start at `doctor`.
"""
