"""Counts, draws and prints the guesses of a Jacobi decoding from round to round.

Start at `trajectory`.
"""
