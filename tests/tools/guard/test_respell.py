"""What reaches an engine is written from the words that were judged: nothing of it changes a query that means one thing."""

import re
import sqlite3
from contextlib import closing

import duckdb
import pytest
from sqlglot.dialects.dialect import Dialect

from tests.tools.guard.gold import DATA, Engine, compare, gold
from tests.tools.guard.harmless import HARMLESS
from tools.guard.canonicalize import LISTED, Respelt, edited, plain_literal, respelt, without_long_lists
from tools.guard.guard import ApprovedQuery, judged
from tools.result import QueryError
from tools.schema import Column, Schema, Table

EVERY = 12


def text_of(sql: str, dialect: str) -> str:
    statement = judged(sql, dialect)
    assert isinstance(statement, ApprovedQuery), (sql, statement)
    return statement.text


@pytest.mark.parametrize(
    ("dialect", "sql", "text"),
    [
        ("duckdb", "SELECT 1 /*/* */ , ' */ , (SELECT max(wage) FROM people) --'", None),
        ("postgres", "SELECT 1 /*/* */ , $z$ */ , (SELECT max(wage) FROM people) --$z$", None),
        ("mysql", "SELECT 1 --\u00a0c, (SELECT 3)\nFROM (SELECT 2 AS \u00a0c) t", "SELECT 1\nFROM (SELECT 2 AS c) AS t"),
        ("mysql", "SELECT 5, {#\nd '2020-01-01'}, (SELECT 6), #}\n 1", "SELECT 5,\n1"),
        ("sqlite", "SELECT  count(*)\tAS n -- how many\nFROM people;", "SELECT  count(*)\tAS n\nFROM people"),
        ("sqlite", "SELECT name n, max([a b]) FROM people p", "SELECT name AS n, max([a b]) FROM people AS p"),
        ("sqlite", "SELECT größe FROM maße", "SELECT `größe` FROM `maße`"),
        ("postgres", "SELECT Größe FROM t", 'SELECT "größe" FROM t'),
        ("postgres", r"SELECT E'a\'b\n', $$it's$$", "SELECT 'a''b\n', 'it''s'"),
        ("mysql", r"""SELECT "it's", 'a\'b', '50\%' FROM t""", r"SELECT 'it''s', 'a''b', '50\\%' FROM t"),
        ("mysql", "SELECT a$b, 1x FROM t", "SELECT `a$b`, `1x` FROM t"),
        ("duckdb", "SELECT\u00a01", "SELECT 1"),
    ],
)  # fmt: skip
def test_what_is_sent_has_one_reading(dialect: str, sql: str, text: str | None) -> None:
    sent = text_of(sql, dialect)
    if text is not None:
        assert re.sub(r"[ \n]*\n[ \n]*", "\n", sent) == text
    outside = re.sub(r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`", "", sent)
    assert outside.isascii() and not re.search(r"/\*|\*/|--|#", outside)


@pytest.mark.parametrize(
    ("dialect", "sql", "shown"),
    [
        ("duckdb", "SELECT '' AS x\u200bUNION\u200bSELECT\u200bv\u200bFROM\u200bsecret", "\\u200b"),
        ("duckdb", "\ufeffSELECT 1", "\\ufeff"),
        ("sqlite", "\u017fELECT 1", "\\u017f"),
        ("postgres", r"SELECT 'a' \ 1", "\\\\"),
        ("postgres", r"SELECT E'\xff'", "xff"),
        ("duckdb", "SELECT 0xffff", "write 65535"),
        ("duckdb", "SELECT 0b101", "write 5"),
        ("sqlite", "SELECT 1_000", "1_000"),
        ("postgres", "SELECT 12ab", "12ab"),
        ("duckdb", "EXPLAIN SELECT 'a'", "this is EXPLAIN"),
        ("duckdb", "PIVOT t ON c IN ('a') USING sum(v)", "SELECT * FROM table PIVOT"),
    ],
)
def test_what_has_two_readings_is_refused_in_one_line(dialect: str, sql: str, shown: str) -> None:
    verdict = judged(sql, dialect)
    assert isinstance(verdict, QueryError) and shown in verdict.message, verdict
    assert verdict.kind in ("refused", "syntax") and verdict.message.isascii() and "\n" not in verdict.message


def test_lambdas_and_rare_clauses_are_understood() -> None:
    sent = text_of("SELECT list_transform([1, 2], lambda x: x + 1) AS y", "duckdb")
    with duckdb.connect() as engine:
        assert engine.execute(sent).fetchall() == [([2, 3],)]
    assert text_of("SELECT 1 BETWEEN SYMMETRIC 3 AND 0", "postgres") == "SELECT 1 BETWEEN SYMMETRIC 3 AND 0"
    assert "placing" in text_of("SELECT overlay('abc' placing 'x' from 2 for 1)", "postgres")
    hidden = judged("SELECT list_transform([1], lambda x: read_text('/etc/passwd'))", "duckdb")
    assert isinstance(hidden, QueryError) and "read_text" in hidden.message


@pytest.mark.parametrize("sql", ["FROM people VALUES (1)", "FROM people VALUES (wage)"])
def test_a_name_that_the_parser_drops_is_refused(sql: str) -> None:
    """Found by differential fuzzing: to sqlglot this is VALUES alone, to DuckDB it reads people."""
    verdict = judged(sql, "duckdb")
    assert isinstance(verdict, QueryError) and "people" in verdict.message and verdict.position == sql.index("people")


KEYWORDS = Schema(
    tuple(
        Table(name, (Column("v", "INTEGER"),)) for name in ("case", "limit", "select", "from", "end", "desc", "fine")
    ),
    "duckdb",
)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT v FROM fine ORDER BY v DESC LIMIT 1",
        "SELECT CASE WHEN v > 1 THEN 2 END FROM fine",
        'SELECT count(*) FROM "select"',
        'SELECT (CASE WHEN v > 1 THEN 2 END), CASE WHEN v > 2 THEN 3 END FROM "case" JOIN "limit" USING (v)',
    ],
)
def test_tables_named_like_keywords_can_be_asked(sql: str) -> None:
    assert isinstance(judged(sql, "duckdb", KEYWORDS), ApprovedQuery)


def test_functions_go_by_the_name_that_the_engine_reads() -> None:
    """Found by differential fuzzing: sqlglot calls `sqlite_version` CurrentVersion, which is not on the list of names."""
    assert isinstance(judged("SELECT sqlite_version()", "sqlite"), QueryError)
    assert isinstance(judged("SELECT total(1) AS sqlite_version", "sqlite"), ApprovedQuery)


@pytest.mark.parametrize("sql", ["SELECT 1 |> UNION SELECT (SELECT 1)", "SELECT {:1}"])
def test_a_crash_of_the_parser_is_a_syntax_error(sql: str) -> None:
    verdict = judged(sql, "duckdb")
    assert isinstance(verdict, QueryError) and verdict.kind == "syntax"


def test_every_harmless_query_is_sent_with_its_words() -> None:
    for dialect, queries in HARMLESS.items():
        for sql in queries:
            words = [token.text for token in Dialect.get_or_raise(dialect).tokenize(sql.rstrip("; "))]
            sent = [token.text for token in Dialect.get_or_raise(dialect).tokenize(text_of(sql, dialect))]
            assert [word for word in sent if word.upper() != "AS"] == [word for word in words if word.upper() != "AS"]


@pytest.mark.parametrize(
    ("dialect", "spelling", "plain"),
    [
        ("duckdb", "'a''b'", "'a''b'"),
        ("postgres", r"e'\u0041\101\x41\\'", r"'AAA\'"),
        ("postgres", "$a$ $$ $a$", "' $$ '"),
        ("postgres", r"E'\000'", None),
        ("postgres", r"E'\ud800'", None),
        ("sqlite", r"E'a'", None),
        ("mysql", r"'a\\'", r"'a\\'"),
        ("mysql", r"'\0\Z\q'", "'\\0\x1aq'"),
        ("mysql", r"'a\'", None),
        ("mysql", '"a""b"', "'a\"b'"),
    ],
)
def test_plain_literals(dialect: str, spelling: str, plain: str | None) -> None:
    assert plain_literal(spelling, dialect) == plain


def test_places_lead_back_to_the_text_that_was_given() -> None:
    sql = "SELECT /* one */ 'x' -- two\n , wag FROM peple p"
    new = respelt(sql, "sqlite")
    assert isinstance(new, Respelt)
    for word in ("'x'", "wag", "peple", "FROM"):
        assert new.origin(new.text.index(word)) == sql.index(word)
    assert new.origin(new.text.index("peple") + 2) == sql.index("peple") + 2
    put = edited(new, [(new.text.index("peple"), new.text.index("peple") + 5, "(SELECT 1 FROM peple)")])
    assert put.origin(put.text.index("(SELECT 1")) == sql.index("peple")
    assert put.origin(put.text.rindex("p")) == sql.rindex("p")
    assert put.origin(put.text.index("wag")) == sql.index("wag")


def test_long_lists_are_shortened_for_the_parser_alone() -> None:
    sql = f"SELECT 1 WHERE 2 IN ({', '.join(map(str, range(5000)))}, 1 + 1)"
    assert text_of(sql, "sqlite") == sql
    tokens = Dialect.get_or_raise("sqlite").tokenize(sql)
    assert len(without_long_lists(tokens)) < 2 * LISTED + 20
    assert isinstance(judged(sql.replace("1 + 1", "load_extension('x')"), "sqlite"), QueryError)
    assert isinstance(judged(f"SELECT 1 WHERE 2 IN (1{',1' * 40_000})", "sqlite"), QueryError)


def test_gold_queries_keep_rows_and_headings() -> None:
    """On every twelfth of 1,101; all of them are the same."""
    if not (DATA / "spider").exists():
        pytest.skip("Spider data is not at ../shared/data")
    queries = list(gold())[::EVERY]
    assert len(queries) > 80
    for sql, path in queries:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.text_factory = bytes
            first, second = (connection.execute(text) for text in (sql, text_of(sql, "sqlite")))
            assert [each[0] for each in first.description] == [each[0] for each in second.description], sql
            assert sorted(map(repr, first)) == sorted(map(repr, second)), sql


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_gold_queries_pass_every_lock_unchanged(engine: Engine) -> None:
    """Also with a table hidden that they do not name; all of them: `python -m tests.tools.guard.gold`."""
    if not (DATA / "spider").exists():
        pytest.skip("Spider data is not at ../shared/data")
    tally = compare(list(gold())[:: 2 * EVERY], engine)
    assert tally.ran > 40
    assert tally.hidden > 40
    assert tally.faults == []


@pytest.mark.parametrize(
    ("dialect", "condition"),
    [
        ("postgres", "1 << 3 > 16 >> 2"),
        ("postgres", "name !~ '^a'"),
        ("postgres", "name !~* '^A'"),
        ("postgres", "name !~~ 'a%'"),
        ("postgres", "name !~~* 'A%'"),
        ("duckdb", "1 << 3 > 16 >> 2"),
        ("duckdb", "name !~~ 'a%'"),
    ],
)
def test_operators_stay_whole(dialect: str, condition: str) -> None:
    """sqlglot reads them as two words, and the engine got these apart: `1 < < 3`, a syntax error."""
    statement = judged(f"SELECT 1 FROM t WHERE {condition}", dialect)
    assert isinstance(statement, ApprovedQuery) and statement.text.endswith(condition)


@pytest.mark.parametrize("written", ["1 < <3", "1 <- 3", "2 <<-1", "name ! ~ 'a'"])
def test_signs_that_are_no_operator_together_stay_apart(written: str) -> None:
    """PostgreSQL takes the longest run of signs for an operator, which somebody may have made: only its own are joined."""
    statement = judged(f"SELECT {written} FROM t", "postgres")
    assert isinstance(statement, QueryError) or not {"<<", "<-", "<<-", "!~"} & {*statement.text.split()}
