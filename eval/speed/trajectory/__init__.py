"""The guesses of a Jacobi decoding from round to round: they are counted, drawn and printed.

Start at `trajectory`.
"""
