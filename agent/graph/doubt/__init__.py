"""How sure an answer is: what speaks for and against it, and how often answers like it are right.

Start at `judge.py`.
"""
