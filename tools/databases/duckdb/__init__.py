"""DuckDB, the engine for files, and the reading of its schema.

Start at `duckdb_database`.
"""
