"""Databases without a language model: open, introspect, guard, execute, match values, repair and rewrite SQL.

Start at `databases/open_database.py`; `result` and `schema` are the data types that all of it uses.
"""
