"""The model that comes with the project, on the bundled database: what its training promises holds."""

from pathlib import Path

from agent.assemble import ModelChoice, load_model
from agent.conversation import Conversation
from tools.database import open_database
from tools.example.build import example_database

QUESTIONS = ("How many customers are there?", "Which artists come from Norway?", "What does the average record cost?")


def test_it_knows_the_next_places_by_itself(tmp_path: Path) -> None:
    """Behind mask tokens, without anything to copy from. Before it was trained on them it wrote 1.6 tokens a forward."""
    choice = ModelChoice(decoder="mask_tokens", decoder_options={"copies": 0})
    database = open_database(example_database(tmp_path))
    try:
        toolbox = load_model(choice).toolbox(database)
        steps = [step for question in QUESTIONS for step in Conversation(toolbox).ask(question).steps]
    finally:
        database.close()
    decoded = [step for step in steps if step["target_forwards"]]
    tokens = sum(step["tokens_per_forward"] * step["target_forwards"] for step in decoded)
    assert tokens / sum(step["target_forwards"] for step in decoded) > 2.0
