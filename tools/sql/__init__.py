"""Works on SQL as a tree: scopes, casts, dialects, joins, and a description of a query in words.

Start at `scope`.
"""
