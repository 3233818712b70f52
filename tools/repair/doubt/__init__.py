"""Signs that SQL is wrong which need no right answer: SQL that runs, but that people hardly ever mean.

Start at `signs.py`.
"""
