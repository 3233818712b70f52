"""Low-rank adapters and their files, ours and peft's.

Start at `adapter`.
"""
