"""What the words of a question surely mean: columns that its plan must name, and keys by which its SQL must join.

Start at `said_columns.py`. Each rule here was first counted on gold plans of questions that no rule was made for.
"""
