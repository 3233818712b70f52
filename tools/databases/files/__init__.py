"""Files to tables and back: CSV, Parquet, JSON, Excel, SQLite.

Start at `load_files`.
"""
