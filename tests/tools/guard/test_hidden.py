"""Hidden tables and columns against two readers of SQL: the statements that came through, and each engine's own lock alone."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import pytest
import sqlalchemy as sa

from tests.tools.databases.server.servers import Server
from tests.tools.guard.fuzzing.differential import CANARIES, HIDDEN, WHOLE, held_to_visible, without_bare_names
from tools.databases.database import Database
from tools.databases.open_database import RestrictedDatabase, open_database, restricted
from tools.guard.visibility import Visibility
from tools.result import Limits, OpenError, QueryError, Result

NESTED = (
    "SELECT 1 /*/* */ , ' */ , (SELECT max(wage) FROM people) --'",
    "SELECT 1 /*/* */ , $z$ */ , (SELECT max(wage) FROM people) --$z$",
    "SELECT 1 /*/* */ , $z$ */ , (SELECT max(v) FROM secret) --$z$",
)
FOUND = {
    "sqlite": NESTED[:1],
    "duckdb": (*NESTED, "SELECT '' AS x\u200bUNION\u200bSELECT\u200bv\u200bFROM\u200bsecret", "FROM people VALUES (wage)"),
    "postgresql": (
        *NESTED,
        r"SELECT 'a\' , ' , (SELECT max(wage) FROM people) --'",
        r"SELECT 'a\'' , (SELECT v FROM secret) --'",
    ),
    "mariadb": (
        "SELECT 1 --\u00a0c, (SELECT max(wage) FROM people)\nFROM (SELECT 2 AS \u00a0c) t",
        "SELECT 5, {#\nd '2020-01-01'}, (SELECT max(wage) FROM people), #}\n 1",
        r"SELECT 'a\' , (SELECT max(wage) FROM people) , ' '",
        r"SELECT 'a\', (SELECT v FROM secret) --'",
        "SELECT \"a' , (SELECT v FROM secret) , '\"",
    ),
}  # fmt: skip


@contextmanager
def made(kind: str, folder: Path, statements: tuple[str, ...] = WHOLE) -> Iterator[Database]:
    """A file with these tables."""
    path = folder / f"firm.{kind}"
    path.unlink(missing_ok=True)
    with closing((sqlite3 if kind == "sqlite" else duckdb).connect(str(path))) as connection:  # type: ignore[attr-defined]
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    with closing(open_database(path, engine="sqlite" if kind == "sqlite" else "auto")) as database:
        yield database


@contextmanager
def at(server: Server, name: str, statements: tuple[str, ...] = WHOLE, settings: str = "") -> Iterator[Database]:
    """A database of its own at the server, opened as its superuser. `settings`: what its administrator set."""
    _run(server.url, f"CREATE DATABASE {name}", *([settings.format(name=name)] if settings else []))
    try:
        _run(server.url_of(server.superuser, name), *statements)
        with closing(open_database(server.url_of(server.superuser, name))) as database:
            yield database
    finally:
        _run(server.url, f"DROP DATABASE {name}")


def _run(url: str, *statements: str) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def held(database: Database, statements: tuple[str, ...]) -> None:
    seen = held_to_visible(database)
    for sql in statements:
        outcome = seen.execute(sql)
        shown = repr((outcome.columns, outcome.rows) if isinstance(outcome, Result) else outcome)
        assert not any(canary in shown for canary in CANARIES), (sql, shown)
    good = seen.execute("SELECT * FROM people AS p /* all */ WHERE p.name <> 'a--b' ORDER BY id")
    assert isinstance(good, Result) and good.rows == ((1, "ann", "x"), (2, "bob", "y"), (3, "eve", "x"))


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_statements_that_came_through_on_files(kind: str, tmp_path: Path) -> None:
    with made(kind, tmp_path) as database:
        held(database, FOUND[kind])


@pytest.mark.parametrize("setting", ["", "ALTER DATABASE {name} SET standard_conforming_strings = off"])
def test_statements_that_came_through_on_postgresql(postgresql: Server, setting: str) -> None:
    with at(postgresql, "found", settings=setting) as database:
        held(database, FOUND["postgresql"])


@pytest.mark.parametrize("modes", ["", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,PIPES_AS_CONCAT", "ORACLE"])
def test_statements_that_came_through_on_mariadb(mariadb: Server, modes: str) -> None:
    _run(mariadb.url, f"SET GLOBAL sql_mode = 'STRICT_TRANS_TABLES,{modes}'")
    try:
        with at(mariadb, "found") as database:
            held(database, FOUND["mariadb"])
            with database._reading(Limits()) as connection:  # type: ignore[attr-defined]
                assert connection.exec_driver_sql("SELECT @@sql_mode").scalar() == "STRICT_TRANS_TABLES"
    finally:
        _run(mariadb.url, "SET GLOBAL sql_mode = DEFAULT")


READS = (
    "SELECT max(wage) FROM people",
    "SELECT name FROM people ORDER BY wage",
    "SELECT * FROM people",
    "SELECT * FROM (SELECT * FROM people)",
    "SELECT v FROM secret",
    "SELECT count(*) FROM secret",
    "SELECT (SELECT v FROM secret)",
    "SELECT p.name FROM pets p, people q WHERE q.wage > 1",
    "WITH people AS (SELECT * FROM secret) SELECT * FROM people",
)
MAY = (
    "SELECT id, name FROM people",
    "SELECT count(*) FROM (SELECT id, dept FROM people) p, pets",
    "WITH x AS (SELECT id FROM people) SELECT count(*) FROM x",
)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_the_engine_alone_reads_nothing_hidden(kind: str, tmp_path: Path) -> None:
    """Past the guard and the rewriting: guards against a second lock that works because the first stands before it."""
    with made(kind, tmp_path) as database:
        database.hold_to(HIDDEN.seen(database.schema()))
        run = without_bare_names(database)._run  # type: ignore[attr-defined]
        for sql in (*READS, *(("SELECT rowid FROM people", "SELECT 1 IN secret") if kind == "sqlite" else ())):
            outcome = run(sql, Limits())
            assert isinstance(outcome, QueryError) and outcome.kind == "refused", (sql, outcome)
        for sql in MAY:
            assert isinstance(run(sql, Limits()), Result), sql


def test_duckdb_alone_calls_no_function_that_reads_elsewhere(tmp_path: Path) -> None:
    with made("duckdb", tmp_path) as database:
        run = without_bare_names(database)._run  # type: ignore[attr-defined]
        for call in ("getvariable('x')", "current_setting('threads')", "(SELECT count(*) FROM duckdb_settings())"):
            outcome = run(f"SELECT {call}", Limits())
            assert isinstance(outcome, QueryError) and outcome.kind == "refused", (call, outcome)
        for source in ("query('SELECT 1')", "read_text('x')", "pragma_version()", "(DESCRIBE people)", "(SHOW TABLES)"):
            outcome = run(f"SELECT * FROM {source}", Limits())
            assert isinstance(outcome, QueryError) and outcome.kind == "refused", (source, outcome)


def test_postgresql_alone_reads_no_hidden_table(postgresql: Server) -> None:
    """Of columns it does not know, and what a view reads that is named may be read by itself, too; see SECURITY.md."""
    views = ("CREATE VIEW shown AS SELECT name FROM pets", "CREATE VIEW unseen AS SELECT v FROM secret")
    with at(postgresql, "locked", (*WHOLE, *views)) as database:
        database.hold_to(Visibility(("people", "pets", "shown"), ("people.wage",)).seen(database.schema()))
        run = without_bare_names(database)._run  # type: ignore[attr-defined]
        for sql in ("SELECT v FROM secret", "SELECT count(*) FROM unseen", "TABLE secret"):
            outcome = run(sql, Limits())
            assert isinstance(outcome, QueryError) and outcome.kind == "refused", (sql, outcome)
        for sql in ("SELECT name FROM shown", *(f"{sql} AS x" if sql.endswith("p") else sql for sql in MAY[::2])):
            assert isinstance(run(sql, Limits()), Result), sql


TWO_SCHEMAS = (
    *WHOLE,
    "CREATE SCHEMA hr",
    "CREATE TABLE hr.payroll (wage INTEGER)",
    "INSERT INTO hr.payroll VALUES (777001)",
)


def test_tables_of_another_schema_are_other_tables(postgresql: Server) -> None:
    """A search path made `payroll` and `hr.payroll` two names of one table, of which one was hidden."""
    with at(postgresql, "paths", TWO_SCHEMAS, "ALTER DATABASE {name} SET search_path = public, hr") as database:
        whole = without_bare_names(database)
        assert [table.name for table in whole.schema().tables] == ["people", "pets", "secret", "hr.payroll"]
        assert [table.name for table in database.schema().tables] == ["people", "pets", "secret", "payroll"]
        for each in (database, whole):  # the path holds where nothing is hidden
            assert isinstance(each.execute("SELECT * FROM payroll"), Result)
        seen = restricted(database, (), ("hr.payroll",))
        assert [table.name for table in seen.schema().tables] == ["people", "pets", "secret"]
        for sql in ("SELECT * FROM payroll", "SELECT * FROM hr.payroll", "SELECT (SELECT max(wage) FROM payroll)"):
            assert isinstance(seen.execute(sql), QueryError), sql
        assert isinstance(seen.execute("SELECT * FROM public.people"), Result)


def test_types_that_know_hidden_names_are_refused(postgresql: Server) -> None:
    with at(postgresql, "types") as database:
        seen = held_to_visible(database)
        for sql in (
            "SELECT row_to_json(json_populate_record(null::people,'{}'))",
            "SELECT row_to_json(null::public._people)",
            "SELECT null::secret",
            "SELECT * FROM json_to_record('{}') AS x(a people)",
            "SELECT 'secret'::regclass",
            "SELECT CAST('secret' AS regclass[])",
        ):
            outcome = seen.execute(sql)
            assert isinstance(outcome, QueryError) and "wage" not in outcome.message, (sql, outcome)
        assert isinstance(seen.execute("SELECT '[1,2)'::int4range, name::text FROM people"), Result)


MADE = (
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE TYPE shade AS ENUM ('sesame')",
    "ALTER TABLE pets ADD mood mood",
    "ALTER TABLE secret ADD shade shade",
    "CREATE TYPE pair AS (n INTEGER, p people)",
)


def test_types_that_hold_hidden_names_are_refused(postgresql: Server) -> None:
    """A composite type that has the type of a table's rows in it told the names of the table's columns."""
    with at(postgresql, "made", (*WHOLE, *MADE)) as database:
        assert database.schema().own_types == {"mood", "shade", "pair"}
        seen = held_to_visible(database)
        for sql in (
            """SELECT row_to_json('(1,"(1,a,2,b)")'::pair)""",
            "SELECT row_to_json(CAST(NULL AS pair))",
            "SELECT '{}'::_pair",
            "SELECT ARRAY[]::public.shade[]",
        ):
            outcome = seen.execute(sql)
            assert isinstance(outcome, QueryError) and "no column has the type" in outcome.message, (sql, outcome)
        assert isinstance(seen.execute("SELECT name FROM pets WHERE mood = 'sad'::mood OR mood IS NULL"), Result)


COMPUTED = (
    "CREATE TABLE people (id INTEGER, wage INTEGER, twice INTEGER GENERATED ALWAYS AS (wage * 2){stored},"
    " next INTEGER GENERATED ALWAYS AS (id + 1){stored})",
    "CREATE VIEW rich AS SELECT id FROM people WHERE wage > 1",
    "CREATE VIEW richer AS SELECT id FROM rich",
    "CREATE VIEW other AS SELECT 1 AS one",
)


def computed(database: Database) -> None:
    seen = Visibility((), ("people.wage",)).seen(database.schema())
    assert {table.name: [column.name for column in table.columns] for table in seen.tables} == {
        "people": ["id", "next"], "other": ["one"],
    }  # fmt: skip
    named = Visibility(("people", "rich"), ("people.wage",)).seen(database.schema())
    assert [table.name for table in named.tables] == ["people", "rich"]
    held_to = restricted(database, (), ("people.wage",))
    for sql in ("SELECT twice FROM people", "SELECT * FROM rich", "SELECT * FROM richer"):
        assert isinstance(held_to.execute(sql), QueryError), sql
    assert isinstance(held_to.execute("SELECT next FROM people"), Result)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_what_is_computed_from_something_hidden_is_hidden(kind: str, tmp_path: Path) -> None:
    with made(kind, tmp_path, tuple(sql.replace("{stored}", "") for sql in COMPUTED)) as database:
        computed(database)


def test_what_is_computed_is_hidden_on_servers(postgresql: Server, mariadb: Server) -> None:
    for server in (postgresql, mariadb):
        with at(server, "computed", tuple(sql.replace("{stored}", " STORED") for sql in COMPUTED)) as database:
            computed(database)


def test_an_error_points_into_what_the_person_wrote(tmp_path: Path) -> None:
    sql = "SELECT /* each */ p.name,\n  wagee FROM people p"
    for kind in ("sqlite", "duckdb"):
        with made(kind, tmp_path) as database:
            for visibility in ((), ("people.wage",)):
                outcome = restricted(database, (), visibility).execute(sql)
                assert isinstance(outcome, QueryError) and outcome.position == sql.index("wagee"), (kind, outcome)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_the_lock_goes_with_the_queries_to_their_process(kind: str, tmp_path: Path) -> None:
    """There the guard knows the whole schema and lets this pass: what refuses it is the engine's lock alone."""
    with made(kind, tmp_path) as own:
        own.close()
        opened = open_database(
            tmp_path / f"firm.{kind}", engine="sqlite" if kind == "sqlite" else "auto", isolated=True
        )
        with closing(opened) as database:
            assert isinstance(database.execute("SELECT v FROM secret"), Result)
            seen = held_to_visible(database)
            outcome = database.execute("SELECT v FROM secret")
            assert isinstance(outcome, QueryError) and outcome.kind == "refused"
            assert isinstance(seen.execute("SELECT * FROM people"), Result)


NARROW = {
    "postgresql": (
        "CREATE ROLE narrow LOGIN",
        "CREATE VIEW staff AS SELECT name FROM pets",
        "GRANT SELECT (id, name, dept) ON people TO narrow",
    ),
    "mariadb": (
        "CREATE USER narrow@localhost",
        "CREATE VIEW staff AS SELECT id, name, dept FROM people",
        "GRANT SELECT ON narrowed.staff TO narrow@localhost",
    ),
}
UNDONE = {"postgresql": ("DROP OWNED BY narrow", "DROP ROLE narrow"), "mariadb": ("DROP USER narrow@localhost",)}


@pytest.mark.parametrize(("kind", "table"), [("postgresql", "people"), ("mariadb", "staff")])
def test_an_account_that_may_read_less_is_a_lock(kind: str, table: str, request: pytest.FixtureRequest) -> None:
    """What SECURITY.md asks for where the server is to lock columns: grants on columns, on MariaDB on a view."""
    server: Server = request.getfixturevalue(kind)
    with at(server, "narrowed"):
        superuser = server.url_of(server.superuser, "narrowed")
        _run(superuser, *NARROW[kind])
        try:
            with closing(open_database(server.url_of("narrow", "narrowed"))) as database:
                run = without_bare_names(database)._run  # type: ignore[attr-defined]
                for sql in ("SELECT max(wage) FROM people", "SELECT v FROM secret"):
                    assert isinstance(run(sql, Limits()), QueryError)
                is_listed = database.schema().table("people") is not None
                seen = restricted(database, (table,), ("people.wage",) if is_listed else ())
                outcome = seen.execute(f"SELECT * FROM {table} ORDER BY id LIMIT 1")
                assert isinstance(outcome, Result) and outcome.rows == ((1, "ann", "x"),), outcome
        finally:
            _run(superuser, *UNDONE[kind])


FAMILIES = (
    "CREATE TABLE part (k INTEGER, val INTEGER) PARTITION BY RANGE (k)",
    "CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (k)",
    "CREATE TABLE part11 PARTITION OF part1 FOR VALUES FROM (0) TO (5)",
    "INSERT INTO part VALUES (1, 777001)",
    "CREATE TABLE parent (id INTEGER, tax INTEGER)",
    "CREATE TABLE child (more INTEGER) INHERITS (parent)",
    "INSERT INTO child VALUES (1, 777002, 3)",
    "CREATE VIEW over_child AS SELECT tax FROM child",
)


def test_partitions_and_heirs_are_hidden_with_their_parents(postgresql: Server) -> None:
    """`SELECT val FROM part1` showed what was hidden of its parent."""
    with at(postgresql, "families", FAMILIES) as database:
        for hidden in (("part.val", "parent.tax"), ("part11.val", "child.tax")):
            seen = restricted(database, (), hidden)
            shown = {table.name: [column.name for column in table.columns] for table in seen.schema().tables}
            assert shown == {
                "part": ["k"], "part1": ["k"], "part11": ["k"], "parent": ["id"], "child": ["id", "more"],
            }  # fmt: skip
            for sql in ("SELECT val FROM part11", "SELECT tax FROM child", "SELECT tax FROM over_child"):
                assert isinstance(seen.execute(sql), QueryError), sql
            for sql in ("SELECT * FROM part", "SELECT * FROM part1", "SELECT * FROM parent", "SELECT * FROM child"):
                assert isinstance(seen.execute(sql), Result), (sql, seen.execute(sql))
        assert [table.name for table in Visibility((), ("part1",)).seen(database.schema()).tables] == [
            "child", "parent", "over_child",
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["lower(x)", '"+"(a, b)', '"left"(a, b)', "list_value(a, b)", "range(a)"])
def test_nothing_is_hidden_where_macros_stand_in_for_functions(name: str, tmp_path: Path) -> None:
    """`SELECT lower('A')`, `1 + 2` and `FROM range(3)` showed a hidden column."""
    body = "TABLE SELECT max(wage) AS w FROM people" if name.startswith("range") else "(SELECT max(wage) FROM people)"
    with made("duckdb", tmp_path, (*WHOLE, f"CREATE MACRO {name} AS {body}")) as database:
        assert isinstance(database.execute("SELECT 1"), Result)
        assert "77700" not in str(database.schema().table("pets"))  # its sample values are read by functions, too
        with pytest.raises(OpenError, match="drop them"):
            RestrictedDatabase(database, HIDDEN)


def test_macros_and_types_of_the_file_are_not_named(tmp_path: Path) -> None:
    """Macros with names that the guard lets pass and DuckDB does not have, and the values of a hidden column's type."""
    own = (
        "CREATE MACRO to_char(a, b) AS (SELECT max(wage) FROM people)",
        "CREATE TYPE mood AS ENUM ('sesame', 'glad')",
        "CREATE TABLE moods (secret mood)",
    )
    with made("duckdb", tmp_path, (*WHOLE, *own)) as database:
        seen = held_to_visible(database)
        for sql in ("SELECT to_char(1, 'a')", "SELECT enum_range(NULL::mood)", "SELECT CAST([] AS mood[])"):
            outcome = seen.execute(sql)
            assert isinstance(outcome, QueryError) and "made by this database" in outcome.message, (sql, outcome)
        held(database, ("SELECT 1 + 1", "SELECT [lower(name)] FROM people"))


FULL_TEXT = (
    "CREATE VIRTUAL TABLE ext USING fts5(v, content='secret')",
    "INSERT INTO ext (ext) VALUES ('rebuild')",
    "CREATE VIRTUAL TABLE vocab USING fts5vocab(ext, row)",
    "CREATE VIRTUAL TABLE f4 USING fts4(content='secret', v)",
    "CREATE VIRTUAL TABLE aux USING fts4aux(f4)",
    "CREATE VIRTUAL TABLE own USING fts5(body)",
    "INSERT INTO own VALUES ('rex')",
)


@pytest.mark.parametrize("engine", ["sqlite", "auto"])
def test_full_text_tables_are_hidden_with_what_they_index(engine: str, tmp_path: Path) -> None:
    """They showed its rows, and their vocabularies its words."""
    with made("sqlite", tmp_path, (*WHOLE, *FULL_TEXT)):
        pass
    with closing(open_database(tmp_path / "firm.sqlite", engine=engine)) as database:
        seen = restricted(database, (), ("secret",))
        names = {table.name for table in seen.schema().tables}
        assert "own" in names and not names & {"ext", "vocab", "f4", "aux"}, names
        for sql in ("SELECT * FROM ext", "SELECT * FROM vocab", "SELECT * FROM f4", "SELECT * FROM aux"):
            assert isinstance(seen.execute(sql), QueryError), sql
        assert isinstance(seen.execute("SELECT * FROM own"), Result)
