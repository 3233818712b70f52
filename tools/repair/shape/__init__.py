"""Mends of a statement's shape by the words of the question: its order, its first row, and the columns that it lists.

Start at `set_direction.py`. Each rule leaves gold queries as they are; the log has the counts.
"""
