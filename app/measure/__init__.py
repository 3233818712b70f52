"""The commands that measure: `eval`, `ablate`, `bench` and its sub-commands. The measuring itself is in `eval/`.

Start at `evaluate` (accuracy) or `bench` (speed).
"""
