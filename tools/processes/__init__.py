"""Child processes, temporary folders, time limits.

Start at `child_process`.
"""
