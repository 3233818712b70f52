"""What a statement that got past the guard may still do at a server, by the server's own account: no guard takes part here."""

from contextlib import closing

import pytest

from tests.tools.databases.server.servers import Server
from tests.tools.guard.test_hidden import HIDDEN, _run, at
from tools.databases.open_database import BareNamedDatabase, RestrictedDatabase, open_database
from tools.databases.sqlalchemy_database import SQLAlchemyDatabase
from tools.result import Limits, QueryError, Result

TAKEN_BACK = (
    "SELECT set_config('role', 'none', true)",
    "SELECT set_config('role', 'admin', true)",
    "SELECT set_config('session_authorization', 'admin', true)",
    "SELECT x.ts_stat FROM unnest(ARRAY['select to_tsvector(set_config(''role'', ''none'', true))']) x",
)
VALUES = """SELECT 1.50::numeric(5, 2) AS n,
'ab'::char(3) AS c, B'101'::bit(3) AS c, ARRAY[1, 2] AS a, '{"k": [1]}'::jsonb AS j,
date '2020-01-02' AS d, interval '1 day' AS i, people AS p, NULL AS nothing, name FROM people ORDER BY id"""


def run(database: object, sql: str, rows: int = 1000) -> Result | QueryError:
    database = database.whole if isinstance(database, BareNamedDatabase) else database
    assert isinstance(database, SQLAlchemyDatabase)
    return database._run(sql, Limits(max_rows=rows))


@pytest.mark.parametrize("sql", TAKEN_BACK)
def test_a_superuser_does_not_take_its_role_back(postgresql: Server, sql: str) -> None:
    """One statement undid the lowered role, read a file of the server, and by an extension ran a program."""
    with at(postgresql, "roles") as database:
        outcome = run(database, sql)
        assert isinstance(outcome, QueryError) and "within security-definer function" in outcome.message, outcome
        after = run(database, "SELECT current_user::text")
        assert isinstance(after, Result) and after.rows == (("pg_read_all_data",),)


def test_where_no_function_can_be_made_the_rows_are_kept_back(postgresql: Server) -> None:
    """As on a standby. The role is then lowered by SET ROLE alone, and the server says afterwards that it was taken back."""
    with at(postgresql, "plain", ("DROP EXTENSION plpgsql",)) as database:
        for sql in TAKEN_BACK:
            outcome = run(database, sql)
            assert isinstance(outcome, QueryError) and outcome.kind == "refused", outcome
        assert isinstance(run(database, "SELECT 1"), Result)


def test_a_superuser_gets_the_rows_that_anybody_gets(postgresql: Server) -> None:
    """Inside the function rows have no types of their own: those that the statement has are named."""
    with at(postgresql, "rows") as database:
        _run(postgresql.url, "CREATE ROLE plain LOGIN IN ROLE pg_read_all_data")
        try:
            with closing(open_database(postgresql.url_of("plain", "rows"))) as other:
                for rows in (2, 1000):
                    first, second = run(database, VALUES, rows), run(other, VALUES, rows)
                    assert isinstance(first, Result) and isinstance(second, Result), (first, second)
                    assert (first.columns, first.types, first.truncated) == (second.columns, second.types, rows == 2)
                    assert repr(first.rows) == repr(second.rows)
        finally:
            _run(postgresql.url, "DROP ROLE plain")
        for sql in ("SELECT 1; SELECT 2", "SELECT nam FROM people", "DELETE FROM people", "SELECT 1 / 0"):
            assert isinstance(run(database, sql), QueryError), sql
        left = run(database, "SELECT count(*) FROM pg_proc WHERE proname LIKE 'sqlagent%'")
        assert isinstance(left, Result) and left.rows == ((1,),)  # the one that runs this, gone with its transaction
        assert isinstance(database.execute("SELECT name FROM people"), Result)


@pytest.mark.parametrize("user", ["admin", "reader"])
def test_what_a_function_reads_meets_the_lock_of_hidden_tables(postgresql: Server, user: str) -> None:
    """`ts_stat` runs a SELECT given as text, which no look at the statement before it runs can see."""
    with at(postgresql, "looked"):
        superuser = postgresql.url_of(postgresql.superuser, "looked")
        _run(superuser, "CREATE INDEX by_id ON people (id)", "CREATE ROLE reader LOGIN IN ROLE pg_read_all_data")
        try:
            with closing(open_database(postgresql.url_of(user, "looked"))) as database:
                seen = RestrictedDatabase(database, HIDDEN)
                query = "SELECT x.ts_stat::text FROM unnest(ARRAY['select to_tsvector({}) from {}']) x"
                outcome = run(database, query.format("v", "secret"))
                assert isinstance(outcome, QueryError) and "may not be read" in outcome.message, outcome
                assert isinstance(run(database, query.format("name", "pets")), Result)
                assert isinstance(seen.execute("SELECT name FROM people WHERE id = 1"), Result)
        finally:
            _run(superuser, "DROP OWNED BY reader", "DROP ROLE reader")


def test_locks_and_settings_are_given_back(postgresql: Server) -> None:
    """Four advisory locks were still held after the queries, by the session in the pool."""
    with at(postgresql, "locks") as database:
        mine = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        outcome = run(database, "SELECT pg_try_advisory_lock(7)")
        assert isinstance(outcome, QueryError) and "took a lock" in outcome.message
        run(
            database, "SELECT pg_try_advisory_lock(8), 1 / (random() * 0)"
        )  # ends in an error, and a lock outlives a rollback
        run(database, "SELECT set_config('statement_timeout', '0', false), set_config('DateStyle', 'German', false)")
        for sql, rows in ((mine, ((0,),)), ("SELECT current_setting('DateStyle')", (("ISO, MDY",),))):
            after = run(database, sql)
            assert isinstance(after, Result) and after.rows == rows, after


def test_locks_are_given_back_by_mariadb(mariadb: Server) -> None:
    with at(mariadb, "locks") as database, at(mariadb, "others") as other:
        run(database, "SELECT get_lock('held', 1)")
        free = run(other, "SELECT is_free_lock('held')")
        assert isinstance(free, Result) and free.rows == ((1,),)
