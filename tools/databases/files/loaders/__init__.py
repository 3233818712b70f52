"""Makes tables of the files of each kind.

Start at `by_duckdb`, for those that DuckDB reads itself.
"""
