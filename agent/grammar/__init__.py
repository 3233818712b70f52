"""Constrains decoding to SQL: SELECT statements in SQLite's and DuckDB's dialects over the schema in scope.

Start at `constraint.sql_constraint`. From the outside in: `constraint` (token ids and what each token spells) -> `machine` (a
lexer, and a pushdown automaton over the grammar in `rules`) -> `scope` (names). Finished SQL is not parsed here; sqlglot does
that elsewhere.
"""
