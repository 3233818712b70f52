"""Spider's rules: execution match, exact match, hardness.

Start at `execution_match`.
"""
