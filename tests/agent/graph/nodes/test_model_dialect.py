"""The embedded model writes SQLite's SQL for DuckDB too; what runs, and what people see, is DuckDB's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from agent.prompts.knowledge import Knowledge
from agent.prompts.profiles import load_profile
from tests.agent.conftest import ScriptedModel
from tools.databases.database import Database
from tools.databases.open_database import open_database

PLAN = "shops: name | SELECT _ FROM _"


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[Database]:
    (tmp_path / "shops.csv").write_text("shop_id,name,city,area\n1,Alfa,Lyon,30\n2,Beta,Lyon,40\n3,Gamma,Nice,7\n")
    opened = open_database([tmp_path / "shops.csv"])
    yield opened
    opened.close()


def asking(
    database: Database, *lines: str, profile: str = "compact", **options: object
) -> tuple[Conversation, AgentContext]:
    model = ScriptedModel(responses=list(lines))
    toolbox = AgentContext(database, model, load_profile(profile), AgentOptions(**options))  # type: ignore[arg-type]
    return Conversation(toolbox), toolbox


def prompt(toolbox: AgentContext, step: str) -> str:
    return "\n".join(message.text for message in toolbox.calls[step].messages)


def test_what_the_model_writes_is_translated(shops: Database) -> None:
    conversation, toolbox = asking(shops, PLAN, "SELECT name, COUNT(*) FROM shops WHERE name LIKE 'A%' GROUP BY city")
    answer = conversation.ask("How many shops whose names start with a are in each city?")
    assert answer.sql == "SELECT ANY_VALUE(name), COUNT(*) FROM shops WHERE name ILIKE 'A%' GROUP BY city"
    assert answer.rows == [["Alfa", 1]]
    assert "dialect: sqlite" in prompt(toolbox, "plan")


def test_what_means_the_same_stays_as_it_was_written(shops: Database) -> None:
    sql = "select name from shops where area > 10"
    answer = asking(shops, PLAN, sql)[0].ask("Which shops are larger than 10?")
    assert answer.sql == sql


def test_division_and_missing_values_are_duckdbs(shops: Database) -> None:
    answer = asking(shops, PLAN, "SELECT area / 4 FROM shops ORDER BY area LIMIT 1")[0].ask(
        "What is a quarter of the least area?"
    )
    assert answer.sql == "SELECT area / 4 FROM shops ORDER BY area LIMIT 1"
    assert answer.rows == [[1.75]]


def test_later_prompts_show_what_the_model_would_have_written(shops: Database) -> None:
    first = "SELECT name, COUNT(*) FROM shops GROUP BY city"
    conversation, toolbox = asking(shops, PLAN, first, PLAN, PLAN, "SELECT 1", "SELECT 2", adapt=False)
    assert conversation.ask("How many shops are in each city?").sql == first.replace("name", "ANY_VALUE(name)")
    conversation.ask("and what about those in Lyon?")
    shown = "\n".join(str(call.messages) for call in toolbox.calls.values())
    assert f"=> {first}" in shown and "ANY_VALUE" not in shown


def test_a_failed_try_is_shown_as_it_was_written(shops: Database) -> None:
    wrong, right = "SELECT name, COUNT(nothing) FROM shops GROUP BY city", "SELECT name FROM shops"
    conversation, toolbox = asking(shops, PLAN, wrong, right, repair=False)
    assert conversation.ask("Which shops are there?").sql == right
    assert wrong in prompt(toolbox, "refine")


def test_a_stored_example_is_duckdbs_already(shops: Database) -> None:
    sql = "SELECT name FROM shops WHERE name LIKE 'A%'"
    knowledge = Knowledge(examples=(("Which shops start with a capital A?", sql),))
    assert asking(shops, knowledge=knowledge)[0].ask("Which shops start with a capital A?").sql == sql


def test_other_models_write_the_databases_dialect(shops: Database) -> None:
    fenced = "```sql\nSELECT name FROM shops WHERE name LIKE 'A%'\n```"
    conversation, toolbox = asking(shops, "plan", fenced, profile="chat")
    assert conversation.ask("Which shops start with a capital A?").sql == "SELECT name FROM shops WHERE name LIKE 'A%'"
    assert "duckdb" in prompt(toolbox, "plan")
