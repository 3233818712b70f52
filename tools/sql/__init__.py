"""SQL as a tree: scopes, casts, dialects, joins, and a query in words.

Start at `scope`.
"""
