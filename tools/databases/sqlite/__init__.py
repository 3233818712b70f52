"""SQLite files queried in SQLite's own dialect.

Start at `sqlite_database`.
"""
