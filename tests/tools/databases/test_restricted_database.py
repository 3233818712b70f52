"""Hidden tables and columns: not in the schema, not in any result, not in any error, whatever the query says."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from tools.databases.open_database import RestrictedDatabase, open_database, restricted
from tools.guard.canonicalize import Respelt
from tools.guard.guard import ApprovedQuery, guard, judged
from tools.guard.visibility import Visibility, narrowed
from tools.result import OpenError, QueryError, Result

DDL = (
    "CREATE TABLE people (id INTEGER PRIMARY KEY, name VARCHAR(30), wage INTEGER, boss INTEGER)",
    "CREATE TABLE pets (owner INTEGER REFERENCES people (id), name VARCHAR(30))",
    "CREATE TABLE vault (id INTEGER, wage INTEGER, word VARCHAR(30))",
    "INSERT INTO people VALUES (1, 'ann', 987654, 2), (2, 'bob', 987655, NULL)",
    "INSERT INTO pets VALUES (1, 'rex')",
    "INSERT INTO vault VALUES (1, 987656, 'sesame')",
)
SECRETS = ("987654", "987655", "987656", "sesame", "wage", "vault")

VISIBLE = (
    ("SELECT * FROM people ORDER BY id", ((1, "ann", 2), (2, "bob", None))),
    ("SELECT people.* FROM people WHERE people.id = 1", ((1, "ann", 2),)),
    ("SELECT p.name FROM main.people AS p WHERE p.boss = 2", (("ann",),)),
    ('SELECT "people"."name" FROM "people" WHERE id = 2', (("bob",),)),
    ("SELECT p.name, q.name FROM people p JOIN pets q ON p.id = q.owner", (("ann", "rex"),)),
    ("SELECT count(*) FROM people WHERE boss IN (SELECT id FROM people)", ((1,),)),
    ("WITH x AS (SELECT name FROM people) SELECT count(*) FROM x", ((2,),)),
    ("SELECT 'é', name FROM people WHERE name IN ('bob') -- vault, wage", (("é", "bob"),)),
    ("SELECT a.name FROM people a, people b WHERE a.boss = b.id", (("ann",),)),
)
FORBIDDEN = (
    "SELECT wage FROM people",
    "SELECT p.wage FROM people AS p",
    "SELECT people.wage FROM people",
    "SELECT main.people.wage FROM main.people",
    "SELECT name FROM people WHERE wage > 987654",
    "SELECT name FROM people ORDER BY wage DESC",
    "SELECT max(wage) OVER () FROM people",
    "SELECT * FROM vault",
    "SELECT * FROM main.vault",
    "SELECT 1 FROM people WHERE EXISTS (SELECT 1 FROM vault WHERE word LIKE 's%')",
    "WITH vault AS (SELECT * FROM vault) SELECT * FROM vault",
    "WITH people AS (SELECT * FROM people) SELECT wage FROM people",
    "SELECT * FROM people NATURAL JOIN vault",
    "SELECT * FROM pets UNION SELECT id, word FROM vault",
    "SELECT (SELECT word FROM vault)",
    "SELECT * FROM (vault)",
    "SELECT * FROM people JOIN (pets CROSS JOIN vault) ON true",
    "SELECT * FROM valt",
    "SELECT wag FROM people",
    "SELECT rowid, * FROM people, pets, vault",
)
ON_SQLITE = ("SELECT 987656 IN vault", "SELECT 987656 IN main.vault", 'SELECT 1 WHERE 987656 IN "vault"')
ON_DUCKDB = (
    'SELECT "wage" + 0 FROM people',
    "SELECT people FROM people",
    "SELECT COLUMNS('w.*') FROM people",
    "SELECT to_json(p) FROM people p",
    "SELECT * EXCLUDE (name) FROM people",
    "FROM people SELECT wage",
    "TABLE vault",
    "SELECT unnest(p) FROM people p",
    "SELECT * FROM people PIVOT (max(wage) FOR name IN ('ann'))",
    "SELECT * FROM query('SELECT * FROM vault')",
    "SELECT * FROM pets POSITIONAL JOIN vault",
)


@pytest.fixture(params=["duckdb", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RestrictedDatabase]:
    path = tmp_path / f"firm.{request.param}"
    connect = duckdb.connect if request.param == "duckdb" else sqlite3.connect
    with closing(connect(str(path))) as connection:
        for statement in DDL:
            connection.execute(statement)
        connection.commit()
    engine = "auto" if request.param == "duckdb" else "sqlite"
    visibility = Visibility(("people", "PETS"), ("People.Wage",))
    with closing(RestrictedDatabase(open_database(path, engine=engine), visibility)) as opened:
        yield opened


def test_the_schema_shows_nothing_of_it(database: RestrictedDatabase) -> None:
    assert [table.name for table in database.schema().tables] == ["people", "pets"]
    assert not any(secret in repr(database.schema()) for secret in SECRETS)


def test_what_is_visible_works_as_ever(database: RestrictedDatabase) -> None:
    for sql, rows in VISIBLE:
        outcome = database.execute(sql)
        assert isinstance(outcome, Result), (sql, outcome)
        assert outcome.rows == rows
        assert database.explain(sql) is None


def test_nothing_hidden_comes_out(database: RestrictedDatabase) -> None:
    for sql in FORBIDDEN + (ON_DUCKDB if database.dialect == "duckdb" else ON_SQLITE):
        outcome = database.execute(sql)
        problem = database.explain(sql)
        said = {word for word in SECRETS if word in sql}
        leaked = [secret for secret in SECRETS if secret not in said and secret in repr((outcome, problem))]
        assert not leaked, (sql, outcome)
        values = outcome.rows if isinstance(outcome, Result) else ()
        assert not any(secret in repr(values) for secret in SECRETS[:4]), (sql, outcome)
        if sql in FORBIDDEN + ON_SQLITE:
            assert isinstance(outcome, QueryError), (sql, outcome)


def test_keys_to_hidden_columns_go(database: RestrictedDatabase) -> None:
    seen = Visibility((), ("people.id",)).seen(database._database.schema())
    assert all(not table.foreign_keys for table in seen.tables)


@pytest.mark.parametrize("visibility", [(("peple",), ()), ((), ("people.salary",)), ((), ("people", "pets", "vault"))])
def test_a_slip_is_an_error_and_not_a_leak(
    database: RestrictedDatabase, visibility: tuple[tuple[str, ...], ...]
) -> None:
    with pytest.raises(OpenError):
        restricted(database._database, *visibility)


@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_servers_get_the_same_subquery(database: RestrictedDatabase, dialect: str) -> None:
    whole = type(database.schema())(database._database.schema().tables, dialect)
    seen = Visibility((), ("people.wage", "vault")).seen(whole)

    def held(sql: str) -> Respelt | QueryError:
        statement = judged(sql, dialect, seen)
        assert isinstance(statement, ApprovedQuery)
        return narrowed(statement, whole, seen)

    statement = held("SELECT p.* FROM people p JOIN pets ON p.id = owner")
    assert isinstance(statement, Respelt)
    mark = "`" if dialect == "mysql" else '"'
    columns = ", ".join(f"{mark}{name}{mark}" for name in ("id", "name", "boss"))
    assert statement.text == f"SELECT p.* FROM (SELECT {columns} FROM people) AS p JOIN pets ON p.id = owner"
    assert guard(statement.text, dialect, whole) is None
    assert isinstance(held("SELECT 1 FROM vault"), QueryError)


def test_the_options_of_the_command_line(tmp_path: Path) -> None:
    """On a CSV file in a process of its own, as a person would use them."""
    path = tmp_path / "people.csv"
    path.write_text("id,name,wage\n1,ann,987654\n")
    run = CliRunner().invoke
    shown = run(app, ["sql", "SELECT * FROM people", "--db", str(path), "--hide", "people.wage", "--csv"])
    assert shown.stdout.splitlines() == ["id,name", "1,ann"]
    refused = run(app, ["sql", "SELECT wage FROM people", "--db", str(path), "--hide", "people.wage"])
    assert refused.exit_code == exit_codes.DATABASE and "987654" not in refused.output
    slip = run(app, ["sql", "SELECT 1", "--db", str(path), "--tables", "peple"])
    assert slip.exit_code == exit_codes.DATABASE and "there is no table peple" in slip.stderr
