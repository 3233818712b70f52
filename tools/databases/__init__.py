"""Databases that can be queried, opened from files, folders or servers.

Start at `database` (what each one can do) and `open_database`.
"""
