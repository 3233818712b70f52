"""Constrains decoding to SQL: SELECT statements in SQLite's and DuckDB's dialects over the schema in scope.

Start at `constraint.sql_constraint`. From the outside in: `constraint` (token ids) -> `vocabulary` (what each token
spells) -> `lexer` (characters) -> `machine` (lexemes: a pushdown automaton over `rules/`) -> `scope/` (names). Finished
SQL is not parsed here; sqlglot does that elsewhere.
"""
