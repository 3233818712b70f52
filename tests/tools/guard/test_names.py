"""Qualified names against the engines: what PostgreSQL reads as a call of a function is refused, what names a column runs.

Texts that would outgrow a server before it looks at its clock are refused; ordinary SQL that joins texts is not.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import duckdb
import pytest
import sqlalchemy as sa

from tests.tools.databases.server.servers import Server
from tests.tools.guard.fuzzing.differential import WHOLE
from tests.tools.guard.test_hidden import HIDDEN, _run, at
from tools.databases.open_database import RestrictedDatabase, open_database
from tools.databases.server_engines import OWN_OPERATOR
from tools.guard.guard import guard
from tools.result import QueryError, Result
from tools.schema import Column, Schema, Table

NAMED = (Column("id", "INTEGER"), Column("name", "VARCHAR"))
SCHEMA = Schema((Table("people", NAMED), Table("pets", (Column("owner", "INTEGER"), NAMED[1]))), "postgres")

ATTRIBUTES = (
    """
SELECT x.ts_stat FROM unnest(ARRAY[{q}]) x
SELECT x."ts_stat" FROM unnest(ARRAY[{q}]) AS x(y)
SELECT (x).ts_stat FROM unnest(ARRAY[{q}]) x
SELECT ((x)).ts_stat FROM unnest(ARRAY[{q}]) x
SELECT ({q}::text).ts_stat
SELECT (SELECT {q}::text).ts_stat
SELECT (ARRAY[{q}])[1].ts_stat
SELECT (CASE WHEN true THEN {q} END).ts_stat
SELECT (x.ts_stat).word FROM unnest(ARRAY[{q}]) x
SELECT TREAT({q} AS ts_stat)
SELECT * FROM ROWS FROM (ts_stat({q}))
SELECT DISTINCT ON (x.ts_stat) x FROM unnest(ARRAY[{q}]) x
SELECT 1 FROM unnest(ARRAY[{q}]) x ORDER BY x.ts_stat
SELECT * FROM unnest(ARRAY[{q}]) x, LATERAL (SELECT x.ts_stat) l
VALUES ((SELECT x.ts_stat FROM unnest(ARRAY[{q}]) x))
(SELECT 1 FROM unnest(ARRAY[{q}]) x) ORDER BY x.ts_stat
SELECT (SELECT 1 FROM (SELECT x.ts_stat AS z) s, (SELECT 1 AS ts_stat) AS x) FROM unnest(ARRAY[{q}]) x
SELECT (WITH c AS (SELECT x.ts_stat) SELECT 1 FROM (SELECT 1 AS ts_stat) x, c) FROM unnest(ARRAY[{q}]) x
SELECT (SELECT 1 FROM people p JOIN pets q ON x.pg_sleep IS NULL, (SELECT 1 AS pg_sleep) x LIMIT 1) FROM unnest(ARRAY[0]) x
SELECT (SELECT 1 FROM ((SELECT 1 AS pg_sleep) x JOIN pets ON true) AS j WHERE x.pg_sleep IS NULL) FROM unnest(ARRAY[0]) x
SELECT x.pg_sleep FROM unnest(ARRAY[0]) x
SELECT x.pg_get_viewdef FROM unnest(ARRAY['v']) x
SELECT x.current_setting FROM unnest(ARRAY['data_directory']) x
SELECT (x).pg_advisory_lock FROM unnest(ARRAY[1]) x
SELECT p.row_to_json FROM people p
SELECT public.people.row_to_json FROM people
SELECT (p).* FROM people p
SELECT sequ.last_value FROM sequ
SELECT p.tableoid FROM people p
SELECT public.lower('A')
SELECT 'a' OPERATOR(pg_catalog.||) 'b'
SELECT regclass 'people'
""".strip()
    .replace("{q}", "'select to_tsvector(v) from secret'")
    .splitlines()
)

COLUMNS = """
SELECT p.name, Q.Name FROM people p JOIN pets AS q ON q.owner = p.id ORDER BY p.name
SELECT public.people.name FROM public.people
SELECT e.key, e.value FROM people, json_each('{}') e
SELECT g.g FROM generate_series(1, 3) g
SELECT g.i FROM generate_series(1, 3) AS g(i)
SELECT generate_series.generate_series FROM generate_series(1, 3)
SELECT u.n, u.ordinality FROM unnest(ARRAY[1]) WITH ORDINALITY AS u(n)
SELECT s.count, s.n FROM (SELECT count(*), name AS n FROM people GROUP BY name) s
SELECT s.coalesce, s.max, s.row_number FROM (SELECT coalesce(1, 2), max(id), row_number() OVER () FROM people) s
SELECT x.* FROM (SELECT * FROM people) x JOIN pets y ON x.id = y.owner
SELECT a.b, a.name FROM (SELECT p.*, 1 AS b FROM people p) a WHERE a.name > ''
SELECT x.a, x.name FROM people AS x(a)
WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT r.i + 1 FROM r WHERE r.i < 5) SELECT r.i FROM r
WITH RECURSIVE r AS (SELECT id AS i FROM people UNION ALL SELECT r.i + 1 FROM r WHERE r.i < 5) SELECT r.i FROM r
WITH c AS (SELECT id FROM people) SELECT c.id, d.id FROM c JOIN c d ON d.id = c.id
SELECT v.column1, w.b FROM (VALUES (1)) v, (VALUES (1, 2)) AS w(a, b)
SELECT l.b FROM people p, LATERAL (SELECT p.id + 1) AS l(b)
SELECT l.k FROM people p LEFT JOIN LATERAL (SELECT q.name AS k FROM pets q WHERE q.owner = p.id) l ON true
SELECT p.name FROM people p WHERE EXISTS (SELECT 1 FROM pets p WHERE p.owner = 1) AND p.id IN (SELECT q.owner FROM pets q)
SELECT count(p.*), (SELECT q.name FROM pets q WHERE q.owner = max(p.id) LIMIT 1) FROM people p
SELECT t.pet FROM (SELECT (SELECT q.name FROM pets q WHERE q.owner = p.id LIMIT 1) AS pet FROM people p) t
SELECT people.name FROM (people JOIN pets ON pets.owner = people.id)
SELECT j.owner FROM (people p JOIN pets q ON q.owner = p.id) AS j
SELECT s.name FROM ((SELECT name FROM people) UNION ALL (SELECT name FROM pets)) s
SELECT s.id FROM (SELECT id::text FROM people) s
SELECT 1 FROM people a JOIN pets b JOIN pets c ON b.owner = c.owner ON a.id = b.owner
SELECT 1 FROM people x JOIN (VALUES (1)) AS y(a) JOIN (people p JOIN pets q ON true) AS z ON z.owner = y.a ON x.id = y.a
SELECT sum(p.id) OVER w FROM people p WINDOW w AS (PARTITION BY p.name)
SELECT p FROM people p
SELECT pg_catalog.lower('A')
""".strip().splitlines()


@pytest.mark.parametrize("sql", ATTRIBUTES)
def test_what_postgresql_may_read_as_a_call_is_refused(sql: str) -> None:
    """Each of these passed the guard, or is the kin of one that did; most of them run at a server."""
    verdict = guard(sql, "postgres", SCHEMA)
    assert verdict is not None and "\n" not in verdict.message, verdict


@pytest.mark.parametrize("sql", COLUMNS)
def test_columns_of_every_kind_of_source_pass(sql: str) -> None:
    assert guard(sql, "postgres", SCHEMA) is None


def test_a_name_that_is_no_column_has_its_place_and_candidates() -> None:
    sql = "SELECT /* all */ p.nam FROM people p"
    verdict = guard(sql, "postgres", SCHEMA)
    assert verdict == QueryError("unknown_column", "p.nam is no known column", "nam", sql.index("nam"), ("name",))
    absent = guard("SELECT p.name FROM peple p", "postgres", SCHEMA)
    assert absent is not None and (absent.kind, absent.candidates) == ("unknown_table", ("people",))


def test_fields_of_columns_pass_where_nothing_is_called_by_attribute() -> None:
    events = Schema((Table("events", (Column("user_", "STRUCT<id INT>"),)),), "bigquery")
    assert guard("SELECT e.user_.id, user_.id FROM events e", "bigquery", events) is None
    assert guard("SELECT s.nextval FROM events e", "snowflake", events) is not None


@pytest.mark.parametrize("sql", ["SELECT shop.lower('A')", "SELECT `shop`.`f`(1)", "SELECT x.y.lower(1) FROM x"])
def test_functions_of_a_schema_are_refused_on_mysql(sql: str) -> None:
    """The name of a function that is allowed, and another one that is called."""
    assert guard(sql, "mysql") is not None


def test_columns_run_and_attributes_do_not(postgresql: Server) -> None:
    """At the server: no hidden word comes out, and what names columns is understood there."""
    more = ("CREATE VIEW v AS SELECT * FROM secret", "CREATE SEQUENCE sequ")
    with at(postgresql, "attributes", (*WHOLE, *more)) as database:
        seen = RestrictedDatabase(database, HIDDEN)
        for sql in ATTRIBUTES:
            outcome = seen.execute(sql)
            assert isinstance(outcome, QueryError) and "sesame" not in str(outcome), (sql, outcome)
        for sql in COLUMNS:
            assert isinstance(database.execute(sql), Result), (sql, database.execute(sql))


RECORDS = """
SELECT * FROM json_to_recordset('[{"a": 1, "b": "x"}]') AS x(a int, b text)
SELECT x.a, b FROM jsonb_to_recordset('[{"a": 1}]') AS x(a int, b text) WHERE x.b IS NULL
SELECT r.a FROM json_to_record('{"a": [1, 2]}') r(a int[])
SELECT a, json_to_record.a FROM json_to_record('{"a": 1.5}') AS (a numeric(4, 2))
SELECT p.name, r.lower FROM people p, jsonb_to_recordset('[{"lower": 1}]') AS r(lower int)
SELECT r.n FROM people p CROSS JOIN LATERAL json_to_record(json_build_object('n', p.name)) AS r(n text) WHERE r.n > ''
SELECT s.a FROM (SELECT * FROM json_to_record('{"a": 1}') AS x(a int)) s
SELECT json_populate_record(p, '{"id": 7}') FROM people p
SELECT x.x, y.y, z.a FROM unnest(ARRAY['a']) x, unnest('{1,2}'::int[]) y, unnest(string_to_array('a b', ' ')) AS z(a)
""".strip().splitlines()
NO_RECORDS = {
    "SELECT * FROM json_to_recordset('[]') x": "json_to_recordset(...) AS t(name type, ...)",
    "SELECT * FROM json_to_record('{}') AS x(a)": "json_to_record(...) AS t(name type, ...)",
    "SELECT * FROM people p, LATERAL jsonb_to_record('{}') AS x": "jsonb_to_record(...) AS t(name type, ...)",
    "SELECT * FROM json_populate_recordset(NULL::pets, '[]')": "json_to_recordset(...) AS t(name type, ...)",
    "SELECT x.name FROM pets p, LATERAL json_populate_record(p, '{}') x": "json_to_record(...) AS t(name type, ...)",
    "SELECT x.lower FROM json_to_record('{\"a\": 1}') AS x(a int)": "x.lower is no known column",
    "SELECT * FROM json_to_record('{}') AS x(a pets)": "the rows of pets are no type",
    "SELECT whole.whole FROM pets p, LATERAL json_populate_record(p, '{}') AS whole": "AS t(name type, ...)",
    "SELECT whole.whole FROM pets p, unnest(ARRAY[p]) whole": "whole.whole is no known column",
    "SELECT whole.whole FROM unnest(to_tsvector('a')) AS whole": "whole.whole is no known column",
}


def test_rows_of_json_have_the_columns_that_are_written(postgresql: Server) -> None:
    """All were refused: `json_to_recordset cannot be read like a table`. `whole(pets)` was called past every list."""
    whole = "CREATE FUNCTION whole(pets) RETURNS text LANGUAGE sql AS 'SELECT v FROM secret'"
    with at(postgresql, "records", (*WHOLE, whole)) as database:
        for sql in RECORDS:
            assert isinstance(database.execute(sql), Result), (sql, database.execute(sql))
        for sql, said in NO_RECORDS.items():
            outcome = database.execute(sql)
            assert isinstance(outcome, QueryError) and said in outcome.message, (sql, outcome)


OPERATORS = """
SELECT 'a' && 'b'
SELECT name FROM pets WHERE name&&name
SELECT name + name FROM pets
SELECT 'a'::text +'b'::text
SELECT 1 WHERE 'a' LIKE 1
SELECT 1 WHERE 'a' NOT LIKE 1
SELECT count(*) FROM pets HAVING max(name) && min(name)
SELECT 1 FROM pets a JOIN pets b ON a.name && b.name
SELECT name FROM pets ORDER BY name && name
""".strip().splitlines()
MADE = (
    *WHOLE,
    "CREATE FUNCTION peek(text, text) RETURNS text LANGUAGE sql AS 'SELECT v FROM secret'",
    "CREATE FUNCTION peek(text, int) RETURNS bool LANGUAGE sql AS 'SELECT true FROM secret'",
    "CREATE FUNCTION gone(text, text) RETURNS bool LANGUAGE sql AS 'SELECT false'",
    "CREATE OPERATOR && (LEFTARG = text, RIGHTARG = text, FUNCTION = peek)",
    "CREATE OPERATOR + (LEFTARG = text, RIGHTARG = text, FUNCTION = peek)",
    "CREATE OPERATOR ~~ (LEFTARG = text, RIGHTARG = int, FUNCTION = peek)",
    "CREATE OPERATOR !~~ (LEFTARG = text, RIGHTARG = int, FUNCTION = peek)",
    "CREATE OPERATOR = (LEFTARG = text, RIGHTARG = text, FUNCTION = gone)",  # which PostgreSQL's own hides
    "CREATE SCHEMA elsewhere",
    "CREATE OPERATOR elsewhere.<> (LEFTARG = text, RIGHTARG = int, FUNCTION = peek)",
    "CREATE EXTENSION citext",
)
BUILT_IN = """
SELECT count(*), max(id) - 1 * 2 FROM people WHERE name = 'ann' AND id <> 3 OR id IN (1, 2) AND id BETWEEN 1 AND 2
SELECT name || ' && + ~~ ' AS "a + b" FROM pets WHERE name ILIKE 'R%' AND name ~ 'x' IS DISTINCT FROM true
SELECT 'A'::citext = 'a', '{"a": 1}'::jsonb -> 'a', '{"a": 1}'::jsonb @> '{"a": 1}'
""".strip().splitlines()


@pytest.mark.parametrize("user", ["admin", "plain"])
def test_an_operator_of_the_database_is_refused(postgresql: Server, user: str) -> None:
    """Each of these ran, and an operator may call any function. Operators of the server, and of extensions, run as before."""
    with at(postgresql, "operators", MADE) as made:
        changed = postgresql.url_of(postgresql.superuser, "operators")
        _run(changed, "CREATE ROLE plain LOGIN IN ROLE pg_read_all_data")
        try:
            with closing(open_database(postgresql.url_of(user, "operators"))) as database:
                for sql in OPERATORS:
                    for outcome in (database.execute(sql), database.explain(sql)):
                        assert isinstance(outcome, QueryError) and outcome.kind == "refused", (sql, outcome)
                        assert outcome.message.startswith(OWN_OPERATOR), outcome
                for sql in BUILT_IN:
                    assert isinstance(database.execute(sql), Result), (sql, database.execute(sql))
                    assert database.explain(sql) is None
                assert "true" in str(made.execute("SELECT 'a' = 'a'")).lower()
        finally:
            _run(changed, "DROP ROLE plain")


@contextmanager
def _sqlite() -> Iterator[tuple[Callable[[str], list[tuple[str]]], type[Exception]]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield lambda sql: connection.execute(sql).fetchall(), sqlite3.Error


@contextmanager
def _duckdb() -> Iterator[tuple[Callable[[str], list[tuple[str]]], type[Exception]]]:
    with duckdb.connect(":memory:") as connection:
        yield lambda sql: connection.execute(sql).fetchall(), duckdb.Error


@contextmanager
def _mariadb(server: Server) -> Iterator[tuple[Callable[[str], list[tuple[str]]], type[Exception]]]:
    engine = sa.create_engine(server.url)
    with engine.connect() as connection:
        yield lambda sql: list(connection.exec_driver_sql(sql).all()), sa.exc.SQLAlchemyError  # type: ignore[arg-type]
    engine.dispose()


def _called_by_attribute(
    run: Callable[[str], list[tuple[str]]], failed: type[Exception], names: list[str]
) -> list[str]:
    found = []
    for name in names:
        for attribute in (f"x.{name}", f"(x.a).{name}", f"(x).{name}"):
            try:
                run(f"SELECT {attribute} FROM (SELECT 'a' AS a) AS x")
                found.append(attribute)
            except failed:
                continue
    return found


def test_other_engines_call_nothing_by_attribute(mariadb: Server) -> None:
    """The reason why qualified names are left to these three."""
    with _sqlite() as (run, failed):
        names = [name for (name,) in run("SELECT DISTINCT name FROM pragma_function_list") if name.isidentifier()]
        assert len(names) > 100 and _called_by_attribute(run, failed, names) == []
    with _duckdb() as (run, failed):
        names = [
            name for (name,) in run("SELECT DISTINCT function_name FROM duckdb_functions()") if name.isidentifier()
        ]
        assert len(names) > 500 and _called_by_attribute(run, failed, names) == []
    with _mariadb(mariadb) as (run, failed):
        names = ["lower", "sleep", "version", "nextval", "lastval", "load_file", "user", "database", "length", "hex"]
        assert _called_by_attribute(run, failed, names) == []


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
