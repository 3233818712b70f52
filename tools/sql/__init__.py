"""Works on SQL as a tree: scopes, dialects, joins, and a description of a query in words.

Start at `scope`.
"""
