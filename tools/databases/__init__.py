"""Sources of tables that can be asked: files, folders, servers.

Start at `database` (what each one can do) and `open_database`.
"""
