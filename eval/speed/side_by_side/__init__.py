"""Compares all methods, and other programs, on the same prompts in one run.

Start at `run`.
"""
