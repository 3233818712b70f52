"""The agent on servers and on tables in schemas: the model writes SQLite's SQL with bare names; what runs is the engine's."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
import sqlalchemy as sa

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from agent.prompts.profiles import load_profile
from tests.agent.conftest import ScriptedModel
from tests.tools.databases.server.servers import Server
from tools.databases.database import Database
from tools.databases.open_database import open_database

TABLES = (
    "CREATE TABLE {0}users (uid INT PRIMARY KEY, username VARCHAR(20), country VARCHAR(20))",
    "CREATE TABLE {0}merchants (mid INT PRIMARY KEY, name VARCHAR(20), city VARCHAR(20))",
    "CREATE TABLE {0}coupons (cid INT PRIMARY KEY, merchant_id INT REFERENCES {0}merchants (mid), status VARCHAR(20))",
    "INSERT INTO {0}users VALUES (1, 'ann', 'US'), (2, 'bo', 'DE'), (3, 'cy', 'US')",
    "INSERT INTO {0}merchants VALUES (1, 'Shoe Hut', 'Rome'), (2, 'Tea Bar', 'Oslo')",
    "INSERT INTO {0}coupons VALUES (1, 1, 'active'), (2, 1, 'used'), (3, 2, 'active')",
)
QUESTIONS = {
    "How many users are there?": [[3]],
    "Show the names of all merchants.": [["Shoe Hut"], ["Tea Bar"]],
    "How many users are in each country?": [["DE", 1], ["US", 2]],
    "Which users are in the US?": [["ann"], ["cy"]],
}
PLAN = "users: username | SELECT _ FROM _"


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(ModelChoice())


@pytest.fixture(params=["duckdb", "postgresql", "mariadb"])
def wallet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """The three tables in the schema `sales`, which MariaDB calls a database."""
    if request.param == "duckdb":
        path = tmp_path / "wallet.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE SCHEMA sales")
            for statement in TABLES:
                connection.execute(statement.format("sales."))
        database = open_database(path)
    else:
        server: Server = request.getfixturevalue(request.param)
        engine = sa.create_engine(server.url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE SCHEMA sales")
            for statement in TABLES:
                connection.exec_driver_sql(statement.format("sales."))
        url = server.url if request.param == "postgresql" else server.url_of("root", "sales")
        database = open_database(url)
    yield database
    database.close()
    if request.param != "duckdb":
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA sales" + " CASCADE" * (request.param == "postgresql"))
        engine.dispose()


def asking(database: Database, *lines: str, **options: object) -> tuple[Conversation, AgentContext]:
    model = ScriptedModel(responses=list(lines))
    toolbox = AgentContext(database, model, load_profile("compact"), AgentOptions(**options))  # type: ignore[arg-type]
    return Conversation(toolbox), toolbox


def prompt(toolbox: AgentContext, step: str) -> str:
    return "\n".join(message.text for message in toolbox.calls[step].messages)


def test_questions_about_tables_in_a_schema_are_answered(wallet: Database, model: LoadedModel) -> None:
    """Every one of them failed: the prompt and the grammar had `sales.users`, which the model wrote as one name."""
    for question, right in QUESTIONS.items():
        answer = Conversation(model.toolbox(wallet)).ask(question)
        assert answer.sql is not None, answer.attempts
        found = sorted(sorted(row, key=str) for row in answer.rows)
        assert found == sorted(sorted(row, key=str) for row in right), answer.sql
        assert wallet.dialect == "mysql" or "sales." in answer.sql


def test_the_grammar_holds_on_a_server(wallet: Database, model: LoadedModel) -> None:
    toolbox = model.toolbox(wallet)
    Conversation(toolbox).ask("How many users are there?")
    assert toolbox.calls["generate"].options["constraint"] is not None


def test_what_runs_is_the_engines_own(wallet: Database) -> None:
    loose = "SELECT username, COUNT(*) FROM users WHERE username LIKE 'A%' GROUP BY country"
    conversation, toolbox = asking(wallet, PLAN, loose)
    answer = conversation.ask("How many users whose names start with a are in each country?")
    assert (answer.rows, answer.error) == ([["ann", 1]], None)
    assert "dialect: sqlite" in prompt(toolbox, "plan") and "sales" not in prompt(toolbox, "plan")
    assert answer.dialect == wallet.dialect
    expected = {
        "duckdb": "SELECT ANY_VALUE(username), COUNT(*) FROM sales.users WHERE username ILIKE 'A%' GROUP BY country",
        "postgres": "SELECT MIN(username) AS username, COUNT(*) FROM sales.users WHERE username ILIKE 'A%' GROUP BY country",
        "mysql": "SELECT MIN(username) AS username, COUNT(*) FROM users WHERE username LIKE 'A%' GROUP BY country",
    }
    assert answer.sql == expected[wallet.dialect]


def test_later_prompts_show_what_the_model_would_have_written(wallet: Database) -> None:
    first = "SELECT username, COUNT(*) FROM users GROUP BY country"
    conversation, toolbox = asking(wallet, PLAN, first, PLAN, PLAN, "SELECT 1", "SELECT 2", adapt=False)
    assert conversation.ask("How many users are in each country?").sql
    conversation.ask("and what about those in DE?")
    assert f"=> {first}" in "\n".join(str(call.messages) for call in toolbox.calls.values())


def test_a_wrong_name_is_repaired(wallet: Database) -> None:
    answer = asking(wallet, PLAN, 'SELECT usernames FROM user WHERE country = "US"')[0].ask(
        "Which users are in the US?"
    )
    assert sorted(answer.rows) == [["ann"], ["cy"]]
    assert answer.attempts[-1]["repaired"]


def test_a_missing_join_is_made_in_the_schema(wallet: Database) -> None:
    """The table that repair adds is named with its schema as well."""
    answer = asking(wallet, PLAN, "SELECT status FROM merchants WHERE name = 'Tea Bar'")[0].ask("Status of Tea Bar?")
    assert answer.rows == [["active"]]
    assert wallet.dialect == "mysql" or (answer.sql or "").count("sales.") == 2


def test_a_failed_try_is_shown_as_it_was_written(wallet: Database) -> None:
    wrong, right = "SELECT username, COUNT(nothing) FROM users GROUP BY country", "SELECT username FROM users"
    conversation, toolbox = asking(wallet, PLAN, wrong, right, repair=False)
    assert len(conversation.ask("Which users are there?").rows) == 3
    assert wrong in prompt(toolbox, "refine")
