"""Translates queries between SQLite's dialect and DuckDB's.

Start at `sqlite_to_duckdb`.
"""
