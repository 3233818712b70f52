"""Accuracy runs and their figures: `run`, summaries, ablations, checks of gold queries.

Start at `run`.
"""
