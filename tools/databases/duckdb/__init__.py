"""DuckDB: the engine for files, and its schema.

Start at `duckdb_database`.
"""
