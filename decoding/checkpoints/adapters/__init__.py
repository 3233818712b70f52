"""Low-rank adapters and their files, in our format and in peft's.

Start at `adapter`.
"""
