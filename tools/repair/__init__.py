"""Repairs by rules SQL that does not run, or that cannot mean what it says.

Start at `repair_query`.
"""
