"""SQLite in its own dialect.

Start at `sqlite_database`.
"""
