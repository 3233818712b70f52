"""SQL as a constraint on decoding: SELECT statements in SQLite's and DuckDB's dialects over the schema in scope.

`constraint.sql_constraint` is the entry. From the outside in: `constraint` (token ids) -> `vocabulary` (which tokens spell
what) -> `lexer` (characters) -> `machine` (lexemes: a stack automaton over `rules/`) -> `scope/` (names). Nothing here
parses finished SQL; sqlglot does that elsewhere.
"""
