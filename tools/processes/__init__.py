"""Child processes, temporary folders and time limits.

Start at `child_process`.
"""
