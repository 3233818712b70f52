"""Decides which statements, functions and names a query may use.

Start at `guard`.
"""
