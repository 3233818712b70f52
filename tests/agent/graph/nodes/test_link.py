"""What linking finds reaches the prompt, less what a question hardly means."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from agent.prompts.profiles import load_profile
from tests.agent.conftest import ScriptedModel
from tools.databases.database import Database
from tools.databases.open_database import open_database


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Database]:
    (tmp_path / "levels.csv").write_text("level,level_name\n1,Product\n2,Shelf\n")
    (tmp_path / "products.csv").write_text("product_id,price\n1,10\n2,20\n")
    opened = open_database([tmp_path / "levels.csv", tmp_path / "products.csv"])
    yield opened
    opened.close()


def test_a_plain_word_of_the_schema_names_no_value(catalog: Database) -> None:
    """SQL that takes it for one is planned again, with prompts that do not show it; other SQL is not."""
    question, plan = "What is the average price of all products?", "products: price | SELECT AVG(_) FROM _"
    wrong = "SELECT AVG(price) FROM products CROSS JOIN levels WHERE level_name = 'Product'"
    right = "SELECT AVG(price) FROM products"
    for without, lines, asked in (
        ((), [plan, wrong, plan, right], 4),
        ((), [plan, right], 2),
        (("meant",), [plan, wrong], 2),
    ):
        model = ScriptedModel(responses=lines)
        toolbox = AgentContext(catalog, model, load_profile("compact"), AgentOptions(without_rules=without))
        answer = Conversation(toolbox).ask(question)
        assert answer.sql == lines[-1]
        assert sum(step["name"] in ("plan", "generate") for step in answer.steps) == asked
        assert ("'Product'" in str(toolbox.calls["plan"].messages[0].text)) is (asked == 2)


def test_a_step_names_the_keys_that_settle_ties(catalog: Database) -> None:
    sql = "SELECT level FROM levels ORDER BY level_name LIMIT 1"
    conversation = Conversation(
        AgentContext(catalog, ScriptedModel(responses=["plan", sql]), load_profile("compact"), AgentOptions())
    )
    answer = conversation.ask("Which level comes first?")
    assert answer.sql == sql
    assert any(step["detail"] == '1 rows, ties settled by "levels".rowid' for step in answer.steps)
