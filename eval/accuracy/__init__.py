"""Accuracy runs and their figures: summaries, ablations, checks of gold queries.

Start at `run`.
"""
