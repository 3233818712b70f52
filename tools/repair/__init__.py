"""Repairs SQL by rules if it does not run, or if it cannot mean what it says.

Start at `repair_query`.
"""
