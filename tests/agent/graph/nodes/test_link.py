"""What linking finds reaches the prompt, less what a question hardly means."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.conversation.conversation import Conversation
from agent.graph.toolbox import AgentOptions, Toolbox
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


@pytest.mark.parametrize(("mends", "named"), [((), True), (("meant",), False)])
def test_a_plain_word_of_the_schema_names_no_value(catalog: Database, mends: tuple[str, ...], named: bool) -> None:
    model = ScriptedModel(responses=["products: price | SELECT AVG(_) FROM _", "SELECT AVG(price) FROM products"])
    toolbox = Toolbox(catalog, model, load_profile("compact"), AgentOptions(mends=mends))
    Conversation(toolbox).ask("What is the average price of all products?")
    assert ("'Product'" in str(toolbox.calls["plan"].messages[0].text)) is named


def test_a_step_names_the_keys_that_settle_ties(catalog: Database) -> None:
    sql = "SELECT level FROM levels ORDER BY level_name LIMIT 1"
    conversation = Conversation(
        Toolbox(catalog, ScriptedModel(responses=["plan", sql]), load_profile("compact"), AgentOptions())
    )
    answer = conversation.ask("Which level comes first?")
    assert answer.sql == sql
    assert any(step["detail"] == '1 rows, ties settled by "levels".rowid' for step in answer.steps)
