"""Databases behind SQLAlchemy: reflection, types and the second lock, on SQLite and on servers that run here."""

import datetime
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from agent.context import AgentContext
from agent.conversation import Conversation
from agent.prompts.profiles import load_profile
from tests.agent.conftest import ScriptedModel
from tests.tools.databases.server.servers import Server
from tools.databases.open_database import BareNamedDatabase, open_database
from tools.databases.sqlalchemy_database import SQLAlchemyDatabase, open_url
from tools.result import Limits, QueryError, Result
from tools.schema import ForeignKey

SERVERS = ["postgresql", "mariadb"]


def _url(request: pytest.FixtureRequest, kind: str, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder}/shop.sqlite"
    server: Server = request.getfixturevalue(kind)
    return server.url


@pytest.fixture(params=["sqlite", *SERVERS])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """The account of an owner who may do everything, with two tables and a view."""
    engine, tables = sa.create_engine(_url(request, request.param, tmp_path)), sa.MetaData()
    item = sa.Table(
        "item", tables, sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.String(30), nullable=False),
        sa.Column("photo", sa.LargeBinary), sa.Column("price", sa.Numeric(9, 2)),
    )  # fmt: skip
    sa.Table("sale", tables, sa.Column("item_id", sa.ForeignKey("item.id")), sa.Column("day", sa.Date))
    tables.create_all(engine)
    with engine.begin() as connection:
        connection.execute(item.insert(), [{"id": i, "name": f"n{i}", "photo": b"x", "price": i} for i in range(1, 6)])
        connection.exec_driver_sql("CREATE VIEW cheap AS SELECT name FROM item WHERE price < 3")
    yield engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW cheap")
    tables.drop_all(engine)
    engine.dispose()


@pytest.fixture
def database(writer: sa.Engine) -> Iterator[SQLAlchemyDatabase]:
    """As a careless superuser opens it."""
    opened = SQLAlchemyDatabase(sa.create_engine(writer.url), "shop")
    yield opened
    opened.close()


def _rows(outcome: Result | QueryError) -> tuple[tuple[Any, ...], ...]:
    assert isinstance(outcome, Result), outcome
    return outcome.rows


def test_reflection(database: SQLAlchemyDatabase) -> None:
    item, sale, cheap = database.schema().tables
    assert [table.name for table in (item, sale, cheap)] == ["item", "sale", "cheap"]
    assert (item.row_count, sale.row_count, cheap.row_count) == (5, 0, None)
    assert [(column.name, column.primary_key, column.nullable) for column in item.columns] == [
        ("id", True, False), ("name", False, False), ("photo", False, True), ("price", False, True),
    ]  # fmt: skip
    assert (item.columns[1].samples, item.columns[2].samples) == (("n1", "n2", "n3"), ())
    assert cheap.columns[0].samples == ("n1", "n2")
    assert item.columns[1].type.startswith("VARCHAR(30")
    assert sale.foreign_keys == (ForeignKey(("item_id",), "item", ("id",)),)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM item",
        "INSERT INTO item (id, name) VALUES (9, 'eve')",
        "UPDATE item SET name = 'eve'",
        "DROP TABLE sale",
        "CREATE TABLE stolen (a INTEGER)",
        "SELECT 1; DELETE FROM item",
        "COMMIT",
    ],
)
def test_the_second_lock_alone(database: SQLAlchemyDatabase, writer: sa.Engine, sql: str) -> None:
    """With the guard gone the read-only transaction, and the rollback behind it, must still keep every row."""
    database._run(sql, Limits())
    database._run("DELETE FROM item", Limits())  # perhaps `sql` ended the transaction
    assert isinstance(database.execute(sql), QueryError)
    with writer.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM item").scalar() == 5
        assert set(sa.inspect(connection).get_table_names()) == {"item", "sale"}


def test_a_query_and_its_cap(database: SQLAlchemyDatabase) -> None:
    outcome = database.execute("SELECT id, name FROM item ORDER BY id", Limits(max_rows=2))
    assert isinstance(outcome, Result), outcome
    assert (outcome.columns, outcome.rows, outcome.truncated) == (("id", "name"), ((1, "n1"), (2, "n2")), True)
    assert outcome.types == ("INTEGER", "TEXT")


def test_signs_in_texts_mean_themselves(database: SQLAlchemyDatabase) -> None:
    """Guards against drivers that take them for parameters, each in its own way."""
    outcome = database.execute("SELECT ':id', '100%', '%s', 'why?' FROM item WHERE name LIKE 'n1%'")
    assert _rows(outcome) == ((":id", "100%", "%s", "why?"),)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_slow_query_ends_at_its_deadline_and_the_session_goes_on(kind: str, request: pytest.FixtureRequest) -> None:
    database = open_url(request.getfixturevalue(kind).url)
    slow = {
        "postgresql": "SELECT pg_sleep(60)",
        "mariadb": "SELECT count(*) FROM seq_1_to_1000000 a, seq_1_to_1000000 b",
    }
    outcome = database._run(slow[kind], Limits(deadline_s=0.5))
    assert isinstance(outcome, QueryError) and outcome.kind == "timeout", outcome
    assert _rows(database.execute("SELECT 1 + 1")) == ((2,),)
    database.close()


def test_a_superuser_reads_no_files_of_the_server(postgresql: Server) -> None:
    """The guard refuses it; behind the guard the role does."""
    database = open_url(postgresql.url)
    for sql in ("SELECT pg_read_file('/etc/hostname')", "SELECT lo_export(1, '/tmp/x')", "SELECT pg_reload_conf()"):
        for outcome in (database.execute(sql), database._run(sql, Limits())):
            assert isinstance(outcome, QueryError) and outcome.kind == "refused", outcome
    database.close()


def test_mariadb_writes_no_file(mariadb: Server) -> None:
    database = open_url(mariadb.url)
    target = mariadb.folder / "stolen"
    for sql in (f"SELECT 1 INTO OUTFILE '{target}'", "SELECT LOAD_FILE('/etc/hostname')"):
        assert isinstance(database.execute(sql), QueryError)
    assert not target.exists()
    database.close()


def test_mariadb_sends_no_rows_past_the_cap(mariadb: Server) -> None:
    """Its driver reads all that was sent before it does anything else: up to the deadline, unless the server stops first."""
    database, started_s = open_url(mariadb.url), monotonic()
    assert len(_rows(database.execute("SELECT seq FROM seq_1_to_1000000000", Limits(max_rows=10)))) == 10
    assert _rows(database.execute("SELECT count(*) FROM (SELECT seq FROM seq_1_to_50) x", Limits(max_rows=10))) == (
        (50,),
    )
    assert monotonic() - started_s < 15
    database.close()


def test_mariadb_behind_a_mysql_url(mariadb: Server) -> None:
    """It has other words for its time limit than MySQL: with MySQL's, no query ran at all."""
    database = open_url(mariadb.url.replace("mariadb+", "mysql+"))
    assert _rows(database.execute("SELECT 1")) == ((1,),)
    assert database.dialect == "mysql"
    database.close()


SHOP = (
    "CREATE TABLE album (title VARCHAR(30), country VARCHAR(30), price NUMERIC(9, 2))",
    "INSERT INTO album VALUES ('Jour', 'France', 9.5), ('Nuit', 'France', 12.5), ('Noche', 'Spain', 20)",
)
GRANTS = {
    "postgresql": ("CREATE ROLE asker LOGIN", "GRANT SELECT ON album TO asker"),
    "mariadb": ("CREATE USER asker@localhost", "GRANT SELECT ON shop.* TO asker@localhost"),
}
REVOKES = {"postgresql": ("DROP ROLE asker",), "mariadb": ("DROP USER asker@localhost",)}
_KINDS: dict[str, dict[str, Any]] = {
    "postgresql": {
        "day": sa.Date, "at": sa.DateTime(timezone=True), "price": sa.Numeric(12, 4), "yes": sa.Boolean,
        "photo": sa.LargeBinary, "note": pg.JSONB, "tags": pg.ARRAY(sa.Text), "key": pg.UUID, "took": sa.Interval,
    },
    "mariadb": {
        "day": sa.Date, "at": sa.DateTime, "price": sa.Numeric(12, 4), "yes": sa.Boolean, "photo": sa.LargeBinary,
        "note": sa.JSON,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SERVERS)
def test_values_keep_their_types(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    moment = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC if kind == "postgresql" else None)
    values: dict[str, Any] = {
        "day": datetime.date(2024, 2, 29), "at": moment, "price": Decimal("12345678.1250"), "yes": True,
        "photo": b"\x00\xff", "note": {"a": [1, None]}, "tags": ["x", "y"],
        "key": uuid.UUID(int=1), "took": datetime.timedelta(hours=30),
    }  # fmt: skip
    engine = sa.create_engine(server.url)
    table = sa.Table("kinds", sa.MetaData(), *[sa.Column(name, type_) for name, type_ in _KINDS[kind].items()])
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), [{column.name: values[column.name] for column in table.columns}])
    database = open_url(server.url)
    outcome = database.execute("SELECT * FROM kinds")
    assert isinstance(outcome, Result), outcome
    found = dict(zip(outcome.columns, outcome.rows[0], strict=True))
    if kind == "mariadb":  # where JSON is text, and a truth is a number
        found |= {"note": json.loads(found["note"]), "yes": bool(found["yes"])}
    assert found == {name: value for name, value in values.items() if name in found}
    assert outcome.types[:3] == ("DATE", "TIMESTAMP", "NUMERIC")
    database.close()
    table.drop(engine)
    engine.dispose()


def test_reflection_needs_few_round_trips(postgresql: Server) -> None:
    """300 tables, one of them closed to this role: the time of a large schema is the number of queries."""
    owner = sa.create_engine(postgresql.url, isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        create = "EXECUTE 'CREATE TABLE many.t' || i || ' AS SELECT ' || i || ' AS id'"
        connection.exec_driver_sql(
            f"CREATE SCHEMA many; DO $$ DECLARE i int; BEGIN FOR i IN 1..300 LOOP {create}; END LOOP; END $$"
        )
        connection.exec_driver_sql("CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA many TO reader")
        connection.exec_driver_sql(
            "GRANT SELECT ON ALL TABLES IN SCHEMA many TO reader; REVOKE ALL ON many.t7 FROM reader"
        )
    database, queries = open_url(postgresql.url_of("reader")), list[str]()
    sa.event.listen(database._engine, "before_cursor_execute", lambda *given: queries.append(given[2]))
    tables = {table.name: table for table in database.schema().tables}
    assert len(tables) == 300 and len(queries) < 100
    assert (tables["many.t300"].row_count, tables["many.t300"].columns[0].samples) == (1, ("300",))
    assert (tables["many.t7"].row_count, tables["many.t7"].columns[0].samples) == (None, ())
    assert _rows(database.execute("SELECT id FROM many.t9")) == ((9,),)
    denied = database.execute("SELECT id FROM many.t7")
    assert isinstance(denied, QueryError) and denied.kind == "refused"
    database.close()
    with owner.connect() as connection:
        connection.exec_driver_sql("DROP SCHEMA many CASCADE; DROP ROLE reader")
    owner.dispose()


@pytest.mark.parametrize("kind", SERVERS)
def test_a_question_is_answered_as_a_role_that_may_only_read(kind: str, request: pytest.FixtureRequest) -> None:
    """The whole agent on a server's own dialect: links, values, the query, rows."""
    server: Server = request.getfixturevalue(kind)
    owner = sa.create_engine(server.url, isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        for statement in (*SHOP, *GRANTS[kind]):
            connection.exec_driver_sql(statement)
    database = open_database(server.url_of("asker"))
    model = ScriptedModel(
        responses=["plan", "SELECT title FROM album WHERE country = 'France' ORDER BY price DESC LIMIT 1"]
    )
    answer = Conversation(AgentContext(database, model, load_profile("chat"))).ask(
        "Which album from France costs most?"
    )
    assert (answer.rows, answer.error) == ([["Nuit"]], None)
    assert answer.dialect == {"postgresql": "postgres", "mariadb": "mysql"}[kind]
    engine = database.whole if isinstance(database, BareNamedDatabase) else database
    refused = engine._run("DELETE FROM album", Limits())  # type: ignore[attr-defined]
    assert isinstance(refused, QueryError)
    database.close()
    with owner.connect() as connection:
        for statement in ("DROP TABLE album", *REVOKES[kind]):
            connection.exec_driver_sql(statement)
    owner.dispose()
