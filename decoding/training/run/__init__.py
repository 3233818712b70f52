"""What a run needs besides model and data: optimiser, schedule, checkpoints, report, processes.

Start at `optimizer`.
"""
