"""The guesses of a Jacobi decoding from round to round: counted, drawn, printed.

Start at `trajectory`.
"""
