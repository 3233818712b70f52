"""Which statements and which names are allowed.

Start at `guard`.
"""
