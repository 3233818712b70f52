"""Texts that would outgrow a server before it looks at its clock are refused; ordinary SQL that joins texts is not."""

import pytest

from tools.guard.guard import guard
from tools.result import QueryError

NESTED = "WITH c0 AS (SELECT name AS s FROM item)" + "".join(
    f", c{i} AS (SELECT {{}} AS s FROM c{i - 1})" for i in range(1, 26)
)


def _nested(function: str, rest: str, times: int) -> str:
    return (
        f"SELECT length({function}("
        + f"{function}(" * (times - 1)
        + f"name{rest})"
        + f"{rest})" * (times - 1)
        + ") FROM item"
    )


HOSTILE = {
    "a chain": ("postgres", f"SELECT length({'||'.join(['s'] * 2000)}) FROM item"),
    "a doubling in WITH": ("postgres", NESTED.format(*["s || s"] * 25) + " SELECT length(s) FROM c25"),
    "a doubling in FROM": (
        "postgres",
        "SELECT length(s) FROM " + "(SELECT s || s AS s FROM " * 20 + "item" + ") AS s" * 20,
    ),
    "nested replace": ("mysql", _nested("replace", ", 'a', 'aa'", 25)),
    "nested regexp_replace": ("postgres", _nested("regexp_replace", ", 'a', 'aa', 'g'", 25)),
    "nested hex": ("mysql", _nested("hex", "", 24)),
    "a recursion": (
        "postgres",
        "WITH RECURSIVE t(s) AS (SELECT name FROM item UNION ALL SELECT s || s FROM t) SELECT s FROM t",
    ),
    "a width": ("postgres", "SELECT format('%1000000000s', name) FROM item"),
    "a width from data": ("postgres", "SELECT format('%*s', id, name) FROM item"),
    "an array": ("postgres", "SELECT array_fill(0, array[30000, 30000])"),
    "a count": ("duckdb", "SELECT repeat('x', 1000001)"),
    "a count from data": ("duckdb", "SELECT repeat('x', id) FROM item"),
    "a product": ("duckdb", "SELECT repeat(a, 2000) FROM (SELECT repeat('x', 1000) AS a) t"),
    "a product in a join": (
        "duckdb",
        "SELECT repeat(a, 2000) FROM ((SELECT repeat('x', 1000) AS a) t JOIN item ON true)",
    ),
    "a product of aliases": ("duckdb", "SELECT repeat('x', 1000000) AS a, repeat(a, 3000) AS b"),
    "a product in a subquery": ("duckdb", "SELECT (SELECT repeat(t.a, 2000)) FROM (SELECT repeat('x', 1000) AS a) t"),
    "a product of VALUES": ("duckdb", "SELECT repeat(v, 2000) FROM (VALUES (repeat('x', 1000))) AS t(v)"),
    "behind a star": ("duckdb", "SELECT repeat(a, 2000) FROM (SELECT * FROM (SELECT repeat('x', 1000) AS a) t) u"),
    "in a UNION": ("duckdb", "SELECT repeat(a, 2000) FROM (SELECT 'x' AS a UNION ALL SELECT repeat('x', 1000)) u"),
    "in ORDER BY": ("duckdb", "SELECT 1 FROM item ORDER BY repeat(name, 20000)"),
    "in JOIN": ("duckdb", "SELECT 1 FROM item a JOIN item b ON repeat(a.name, 20000) = b.name"),
}


@pytest.mark.parametrize(("dialect", "sql"), HOSTILE.values(), ids=HOSTILE)
def test_what_may_grow_without_end_is_refused(dialect: str, sql: str) -> None:
    outcome = guard(sql, dialect)
    assert isinstance(outcome, QueryError) and outcome.kind == "refused", outcome
    assert "texts" in outcome.message, outcome.message


ORDINARY = {
    "labels": "SELECT first || ' ' || last || ' (' || town || ', ' || country || ')' FROM item",
    "fifty columns": f"SELECT {' || chr(44) || '.join(f'c{i}' for i in range(50))} FROM item",
    "cleaning": "SELECT replace(replace(replace(price, '$', ''), ',', ''), ' ', '') FROM item",
    "HTML": "SELECT replace(replace(replace(replace(name, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '\"', '&quot;') FROM item",
    "a path": "WITH RECURSIVE t(id, path) AS (SELECT id, name FROM c WHERE up IS NULL UNION ALL "
    "SELECT c.id, t.path || ' / ' || c.name FROM c JOIN t ON c.up = t.id) SELECT path FROM t",
    "a path of bare names": "WITH RECURSIVE t AS (SELECT id, title AS path, 1 AS deep FROM c UNION ALL "
    "SELECT c.id, path || '>' || title, deep + 1 FROM c JOIN t ON c.up = t.id) SELECT path FROM t",
    "counting": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT i FROM n",
    "padding": "SELECT lpad(CAST(id AS VARCHAR), 10, '0') FROM item",
    "a bar of stars": "SELECT name, repeat('*', 40) FROM item",
    "many conditions": f"SELECT name FROM item WHERE {' OR '.join(f'id = {i}' for i in range(2000))}",
    "a long list": f"SELECT name FROM item WHERE id IN ({', '.join(map(str, range(9000)))})",
    "wide rows": f"SELECT {', '.join(f'upper(c{i}) AS c{i}' for i in range(1000))} FROM item",
}


@pytest.mark.parametrize("dialect", ["duckdb", "sqlite", "postgres"])
@pytest.mark.parametrize("sql", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_texts_pass(sql: str, dialect: str) -> None:
    outcome = guard(sql, dialect)
    assert outcome is None or outcome.kind == "unknown_function", outcome
