"""SQL that does not run, or cannot mean what it says, made right by rules.

Start at `repair_query`.
"""
