"""Runs every method, and other programs, on the same prompts in one run.

Start at `run`.
"""
