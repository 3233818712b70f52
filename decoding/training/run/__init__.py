"""What a run needs besides model and data: optimizer, schedule, checkpoints, report, processes.

Start at `optimizer`.
"""
