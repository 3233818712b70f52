"""Loads files into tables and exports rows to files: CSV, Parquet, JSON, Excel, SQLite.

Start at `load_files`.
"""
