"""SQL as a constraint on decoding: SELECT statements in SQLite's and DuckDB's dialects over the schema in scope.

Start at `constraint.sql_constraint`. From the outside in: `constraint` (token ids) -> `vocabulary` (which tokens spell
what) -> `lexer` (characters) -> `machine` (lexemes: a stack automaton over `rules/`) -> `scope/` (names). Finished SQL
is not parsed here; sqlglot does that elsewhere.
"""
