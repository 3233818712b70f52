"""Rules for rows: what they keep from being seen stays unseen, and each of the locks holds without the other."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlglot import parse_one
from typer.testing import CliRunner

from app.cli import app
from tests.tools.databases.server.servers import Server
from tests.tools.guard.fuzzing.differential import UNRULED, WHOLE, without_bare_names
from tests.tools.guard.test_hidden import at, made
from tools.databases.choices import _digest
from tools.databases.database import Database, Distinct
from tools.databases.open_database import restricted
from tools.guard.visibility import outside_rules
from tools.result import Limits, OpenError, QueryError, Result

RULE = "people: dept <> :dept"
VALUES = {"dept": "z"}
TABLES = (*WHOLE, UNRULED, "CREATE VIEW staff AS SELECT * FROM people")
UNSEEN = ("TOP-SECRET", "777004")
ASKED = (
    "SELECT * FROM people",
    "SELECT p.* FROM people AS p JOIN people q ON p.id <= q.id",
    "SELECT * FROM people NATURAL JOIN people AS other",
    "SELECT * FROM (people JOIN pets ON 1 = 1)",
    "SELECT max(wage), count(*), max(name) FROM people",
    "SELECT 1 FROM people WHERE id = 4",
    "SELECT (SELECT max(wage) FROM people)",
    "SELECT * FROM pets WHERE EXISTS (SELECT 1 FROM people WHERE id = 4)",
    "SELECT * FROM pets LEFT JOIN people ON people.dept = 'z'",
    "WITH x AS (SELECT * FROM people) SELECT * FROM x",
    "WITH people AS (SELECT 1) SELECT * FROM people",
    "SELECT name FROM people UNION ALL SELECT name FROM people",
    "SELECT people FROM people",
    "SELECT 4 IN people",
    "SELECT * FROM people WHERE dept <> 'z' OR 1 = 1",
    "SELECT * FROM people PIVOT (max(name) FOR dept IN ('z'))",
    "SELECT row_number() OVER (ORDER BY id DESC), name FROM people",
    "SELECT * FROM staff",
    "SELECT * FROM main.people",
    "SELECT * FROM public.people",
    "FROM people",
    "TABLE people",
    "SELECT name FROM people, LATERAL (SELECT 1 AS one) AS x",
)


def unseen(seen: Database, statements: Sequence[str] = ASKED) -> None:
    """None of the statements shows anything of the row that the rule keeps back, in rows or in errors."""
    for sql in statements:
        outcome = seen.execute(sql)
        assert not any(each in repr(outcome) for each in UNSEEN), (sql, outcome)
    count = seen.execute("SELECT count(*) FROM people WHERE name <> 'a--b'")
    assert isinstance(count, Result) and count.rows == ((3,),)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_files(kind: str, tmp_path: Path) -> None:
    with made(kind, tmp_path, TABLES) as database:
        seen = restricted(database, (), (), [RULE], VALUES)
        unseen(seen)
        people = seen.schema().table("people")
        assert people and people.row_count is None and seen.schema().table("staff") is None
        assert not any(each in repr(seen.schema()) for each in UNSEEN)
        values = seen.distinct(Distinct((("people", "name"), ("pets", "name")), 10))
        assert isinstance(values, Result) and {value for _, value in values.rows} == {"ann", "bob", "eve", "rex"}
        assert _digest(seen.schema()) != _digest(database.schema())  # or kept values would be shared


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_servers(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    with at(server, "ruled", TABLES) as database:
        unseen(restricted(database, (), (), [RULE], VALUES))


def test_no_condition_of_a_query_is_tried_on_a_row_that_may_not_be_seen(postgresql: Server) -> None:
    """Without the fence PostgreSQL tries what is cheaper first, and the error of a cast tells of a value of an unseen row."""
    tables = (
        "CREATE TABLE people (wage INTEGER, dept VARCHAR(30))",
        "INSERT INTO people VALUES (1, 'x'), (777004, 'z')",
    )
    query = "SELECT wage FROM {} AS people WHERE CAST(wage AS SMALLINT) > 0"
    with at(postgresql, "fenced", tables) as database:
        inlined = "(SELECT wage FROM people WHERE (lower(trim(dept)) <> 'z'))"
        told = database.execute(query.format(inlined))
        assert isinstance(told, QueryError) and "out of range" in told.message
        seen = restricted(database, (), (), ["people: lower(trim(dept)) <> 'z'"])
        outcome = seen.execute(query.format("people"))
        assert isinstance(outcome, Result) and outcome.rows == ((1,),)


FENCED = "SELECT * FROM (SELECT name FROM people WHERE (dept <> 'z') LIMIT 9223372036854775807) AS people"
UNFENCED = (
    "SELECT name FROM people",
    "SELECT * FROM (SELECT name FROM people LIMIT 9223372036854775807) AS people",
    "SELECT * FROM (SELECT name FROM people WHERE (dept <> 'z')) AS people",
    "SELECT * FROM (SELECT name FROM people WHERE (dept <> 'y') LIMIT 9223372036854775807) AS people",
    "SELECT * FROM (SELECT name FROM people WHERE (dept <> 'z') OR TRUE LIMIT 9223372036854775807) AS people",
    "SELECT * FROM (SELECT name FROM people WHERE (dept <> 'z') GROUP BY name LIMIT 9223372036854775807) AS people",
    "SELECT * FROM (SELECT p.name FROM people, people AS p WHERE (people.dept <> 'z') LIMIT 9223372036854775807) AS people",
    f"{FENCED} UNION SELECT name FROM people",
)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_the_second_look_alone(kind: str, tmp_path: Path) -> None:
    """Past the rewriting: guards against a second lock that works because the first stands before it."""
    with made(kind, tmp_path, TABLES) as database:
        seen = restricted(database, (), (), [RULE], VALUES)
        assert isinstance(database.execute(FENCED), Result)
        for sql in UNFENCED:
            outcome = database.execute(sql)
            assert isinstance(outcome, QueryError) and outcome.kind == "refused", (sql, outcome)
            assert outside_rules(parse_one(sql, dialect=database.dialect), seen.schema()) is not None, sql


def test_duckdb_alone(tmp_path: Path) -> None:
    """Its own parse tells a table that stands without its rule."""
    with made("duckdb", tmp_path, TABLES) as database:
        restricted(database, (), (), [RULE], VALUES)
        engine = without_bare_names(database)
        assert isinstance(engine._run(FENCED, Limits()), Result)  # type: ignore[attr-defined]
        for sql in UNFENCED:
            outcome = engine._run(sql, Limits())  # type: ignore[attr-defined]
            assert isinstance(outcome, QueryError) and "not all of people" in outcome.message, (sql, outcome)


@pytest.mark.parametrize(
    ("rules", "values", "says"),
    [
        (["people"], {}, "write a rule as"),
        (["persons: id = 1"], {}, "no table persons"),
        (["people: id ="], {}, "is no condition"),
        (["people: id = 1 LIMIT 1"], {}, "is no condition"),
        (["people: id = (SELECT max(id) FROM people)"], {}, "only compare columns of one row"),
        (["people: people.id = 1"], {}, "without the table"),
        (["people: town = 'x'"], {}, "does not run"),
        (["people: dept = :d"], {}, "--rule-value d="),
        (["people: dept = 'x'"], {"d": "x"}, "no rule has :d"),
        (["people: id = 1", "PEOPLE: id = 2"], {}, "two rules"),
    ],
)
def test_a_rule_that_cannot_be_kept(rules: list[str], values: dict[str, str], says: str, tmp_path: Path) -> None:
    with made("duckdb", tmp_path, TABLES) as database, pytest.raises(OpenError, match=says):
        restricted(database, (), (), rules, values)


def test_a_view_is_shown_with_a_rule_of_its_own_only(tmp_path: Path) -> None:
    """`--tables` once would have shown every row through a view that somebody had made of the table."""
    with made("duckdb", tmp_path, TABLES) as database, pytest.raises(OpenError, match="rule for the view"):
        restricted(database, ("people", "staff"), (), [RULE], VALUES)
    with made("duckdb", tmp_path, TABLES) as database:
        seen = restricted(database, (), (), [RULE, "staff: wage < 777002"], VALUES)
        found = seen.execute("SELECT name FROM staff")
        assert isinstance(found, Result) and found.rows == (("ann",),)


def test_a_value_is_text_whatever_is_in_it(tmp_path: Path) -> None:
    with made("sqlite", tmp_path, TABLES) as database:
        seen = restricted(database, (), (), ["people: dept = :d"], {"d": "x' OR '1' = '1"})
        found = seen.execute("SELECT count(*) FROM people")
        assert isinstance(found, Result) and found.rows == ((0,),)


def test_on_the_command_line(tmp_path: Path) -> None:
    with made("duckdb", tmp_path, TABLES):
        pass
    given = ["sql", "SELECT name FROM people ORDER BY 1", "--db", str(tmp_path / "firm.duckdb"), "--csv"]
    run = CliRunner().invoke
    shown = run(app, [*given, "--rule", RULE, "--rule-value", "dept=z"])
    assert shown.exit_code == 0 and shown.stdout.split() == ["name", "ann", "bob", "eve"]
    refused = run(app, [*given, "--rule", RULE])
    assert refused.exit_code == 5 and "--rule-value dept=" in refused.stderr
