"""What a run needs beside model and data: optimizer, schedule, checkpoints, report, processes.

Start at `optimizer`.
"""
