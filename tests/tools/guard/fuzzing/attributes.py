"""Statements in which an engine's grammar may call a function without parentheses after its name. Data for differential.py.

Attributes of rows, of parentheses, of subscripts; typed literals, TREAT, casts, OPERATOR, ROWS FROM, methods, operators of the
database's own (`differential.py` makes them), rows of JSON with and without their columns. They stand in
every clause, in queries within queries whose sources share their aliases, so that a reader who takes an alias for another
source than the engine does sees a column where the engine sees a call.
"""

import random
from collections.abc import Callable

DEPTH = 3
FUNCTIONS = {
    "postgres": (
        "ts_stat", "ts_stat", "current_setting", "pg_get_viewdef", "to_regclass", "pg_ls_dir", "pg_read_file", "row_to_json",
        "pg_column_size", "pg_typeof", "lower", "text", "wage", "v", "quote_literal", "pg_size_bytes", "loread", "whole",
    ),
    "duckdb": ("getenv", "current_setting", "read_text", "query", "lower", "wage", "v", "getvariable", "version"),
    "sqlite": ("sqlite_version", "load_extension", "readfile", "lower", "wage", "v", "rowid"),
    "mysql": ("load_file", "version", "nextval", "lastval", "lower", "wage", "v", "sleep"),
}  # fmt: skip
TEXTS = (
    "select to_tsvector(v) from secret",
    "select to_tsvector(max(wage)::text) from people",
    "{secret}",
    "secret",
    "1",
)
ROWS = {
    "postgres": "unnest(ARRAY['{text}']) {alias}",
    "duckdb": "unnest(['{text}']) {alias}",
    "sqlite": "json_each('[\"1\"]') {alias}",
    "mysql": "(SELECT '{text}' AS y) {alias}",
}
ALIASES = ("x", "x", "x", "y")


class Attributes:
    """Statements for one dialect, drawn by `chance`."""

    def __init__(self, dialect: str, chance: random.Random) -> None:
        self._chance, self._rows = chance, ROWS[dialect]
        self._functions, self._name, self._is_postgres = FUNCTIONS[dialect], "", dialect == "postgres"

    def statement(self) -> str:
        """`{secret}` in it stands for the path of a file that must not be read. One name is a column here and a call there."""
        self._name = self._chance.choice(self._functions)
        return self._query(0)

    def _one(self, *choices: str) -> str:
        return self._chance.choice(choices)

    def _made(self, *choices: Callable[[], str]) -> str:
        return self._chance.choice(choices)()

    def _happens(self, chance: float) -> bool:
        return self._chance.random() < chance

    def _function(self) -> str:
        return f'"{self._name}"' if self._happens(0.1) else self._name

    def _query(self, depth: int) -> str:
        with_ = f"WITH {self._one('', 'RECURSIVE ')}c AS ({self._query(depth + 1)}) " if self._happens(0.15) else ""
        listed = ", ".join(self._output(depth) for _ in range(self._chance.randint(1, 2)))
        query = (
            f"{with_}SELECT {self._one('', '', '', 'DISTINCT ')}{listed} FROM {self._from(depth)}{self._tail(depth)}"
        )
        if self._happens(0.1) and depth < DEPTH:
            query = f"({query}) {self._one('UNION ALL', 'EXCEPT')} ({self._query(depth + 1)}){self._tail(depth)}"
        return query

    def _output(self, depth: int) -> str:
        return self._expression(depth) + self._one("", "", f" AS {self._function()}")

    def _expression(self, depth: int) -> str:
        alias, name = self._one(*ALIASES), self._function()
        if self._happens(0.85):
            return f"{alias}.{name}"
        return self._made(
            lambda: f"({self._inner(depth)}).{name}",
            lambda: f"({self._inner(depth)})[1].{name}",
            lambda: f"({self._inner(depth)}).{self._function()}.{name}",
            lambda: f"({self._inner(depth)}).*",
            lambda: f"{self._one('public', 'main', 'pg_catalog')}.people.{name}",
            lambda: f"{alias}.y.{name}",
            lambda: f"{alias}.{name}()",
            lambda: f"{self._text()}.{name}()",
            lambda: f"{name} {self._text()}",
            lambda: f"TREAT({self._inner(depth)} AS {name})",
            lambda: f"CAST({self._inner(depth)} AS {self._one(name, 'people', 'regclass')})",
            lambda: f"{self._text()} OPERATOR({self._one('pg_catalog.||', 'public.+')}) {alias}.{name}",
            lambda: (
                f"{self._text()} {self._one('+', '&&', '!~~', 'NOT LIKE')} {self._one(alias, f'{alias}.y', 'pets')}"
            ),
            lambda: f"{alias}.*",
            lambda: f"{alias}",
            lambda: f"max({alias}.{name})",
            lambda: f"NEXT VALUE FOR {name}",
        )

    def _inner(self, depth: int) -> str:
        if depth < DEPTH and self._happens(0.3):
            return self._query(depth + 1)
        return self._one(self._one(*ALIASES), self._text(), f"{self._text()}::text", f"ARRAY[{self._text()}]", "NULL")

    def _text(self) -> str:
        return f"'{self._one(*TEXTS)}'"

    def _from(self, depth: int) -> str:
        found = self._source(depth)
        for _ in range(self._chance.choice((0, 0, 1, 1, 2))):
            found += self._one(
                f", {self._source(depth)}",
                f" CROSS JOIN {self._source(depth)}",
                f" JOIN {self._source(depth)} ON {self._expression(depth)} IS NULL",
                f" LEFT JOIN {self._source(depth)} ON true",
                f" JOIN {self._source(depth)} JOIN {self._source(depth)} ON {self._expression(depth)} IS NULL ON true",
            )
        return found

    def _source(self, depth: int) -> str:
        alias, name = self._one(*ALIASES), self._function()
        rows = self._rows.replace("{text}", self._one(*TEXTS)).replace("{alias}", alias)
        simple = (
            rows,
            rows,
            rows.removesuffix(alias) + f"AS {alias}({self._one('y', name)})",
            f"(SELECT 1 AS {name}) AS {alias}",
            f"(SELECT 'a' AS y, 1 AS {name}) AS {alias}",
            f"(VALUES ({self._text()})) AS {alias}({self._one('y', name, name)})",
            f"{self._one('people', 'c', 'c')} AS {alias}",
            f"people AS {alias}({name})",
            f"pets AS {alias}(y, {name})",
            f"ROWS FROM ({name}({self._text()})) AS {alias}" if self._happens(0.1) else f"(SELECT 1 AS {name}) {alias}",
            self._rows_of_json(alias, name) if self._is_postgres else rows,
        )
        if depth >= DEPTH or self._happens(0.6):
            return self._chance.choice(simple)
        return self._made(
            lambda: f"{self._one('', 'LATERAL ')}({self._query(depth + 1)}) AS {alias}{self._one('', f'({name})')}",
            lambda: f"({self._source(depth + 1)} JOIN {self._source(depth + 1)} ON true)",
            lambda: f"({self._source(depth + 1)} JOIN {self._source(depth + 1)} ON true) AS {alias}",
        )

    def _rows_of_json(self, alias: str, name: str) -> str:
        alias = self._one(alias, name)
        return self._one(
            f"json_to_record('{{}}') AS {alias}{self._one('', f'({name} int)', '(y text)', f'({name})', '(y people)')}",
            f"LATERAL jsonb_to_recordset('[{{}}]') {alias}({name} text, y int)",
            f"json_to_record('{{}}') AS ({name} int)",
            f"json_populate_record(NULL::pets, '{{}}') {alias}",
            f"pets p, LATERAL json_populate_record(p, '{{}}') {alias}",
            f"pets p, unnest(ARRAY[p]) {alias}",
            f"unnest(to_tsvector({self._text()})) {alias}",
        )

    def _tail(self, depth: int) -> str:
        if self._happens(0.6):
            return ""
        expression = self._expression(depth)
        return self._one(
            f" WHERE {expression} IS NULL",
            f" WHERE EXISTS ({self._query(DEPTH)})",
            f" GROUP BY {expression}",
            f" ORDER BY {expression}",
            f" HAVING count(*) > 0 AND max({expression}) IS NULL",
            f" WINDOW w AS (ORDER BY {expression})",
            f" LIMIT (SELECT {expression})",
        )
