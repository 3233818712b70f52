"""The model that comes with the project, on the bundled database: what its training promises holds."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.assistant import Assistant
from agent.conversation import Conversation
from agent.nodes import assess
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database
from tools.linking.questions import STARTERS, ExampleQuestion, starters
from tools.result import Result

QUESTIONS = ("How many customers are there?", "Which artists come from Norway?", "What does the average record cost?")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(ModelChoice())


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    opened = open_database(example_database(tmp_path_factory.mktemp("example")))
    yield opened
    opened.close()


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


def test_the_first_questions_of_the_chat_are_answered_alike_in_any_order(tmp_path: Path) -> None:
    """The second of them got the SQL of the first: the history in its prompt overwhelmed the question."""
    database = open_database(example_database(tmp_path))
    try:
        model = load_model(ModelChoice())
        questions = starters(database.schema(), most=10)
        afresh = {question: Conversation(model.toolbox(database)).ask(question).sql for question in questions}
        for seed in range(2):
            chat, order = Conversation(model.toolbox(database)), Random(seed).sample(questions, len(questions))
            answers = {question: chat.ask(question) for question in order}
            assert {question: answer.sql for question, answer in answers.items()} == afresh
            assert not any(answer.continues for answer in answers.values())
    finally:
        database.close()
    assert len(afresh) == 10


@pytest.mark.parametrize("starter", STARTERS, ids=lambda starter: starter.question)
def test_the_offered_questions_are_answered_right(
    model: LoadedModel, database: Database, starter: ExampleQuestion
) -> None:
    """What is shown has the cells of the rows that SQL written by hand gives."""
    wanted = database.execute(starter.sql)
    assert isinstance(wanted, Result)
    answer = Conversation(model.toolbox(database)).ask(starter.question)
    shown = [set(map(str, row)) for row in answer.shown["rows"]] if answer.shown else []
    assert len(shown) == len(wanted.rows)
    for row in wanted.rows:
        assert any(set(map(str, row)) <= each for each in shown), (row, shown)


def test_a_second_opinion_takes_no_second_look_unless_asked(
    model: LoadedModel, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other readings of a doubtful question take seconds, and a review should be there at once."""
    looked, look = list[str](), assess._second_look
    monkeypatch.setattr(
        assess, "_second_look", lambda state, *given: looked.append(state["sql"]) or look(state, *given)
    )
    assistant = Assistant(database, ModelChoice(), model=model)
    question = "What share of orders came from returning customers?"
    reviewed = assistant.check("SELECT COUNT(*) FROM orders", question)
    assert "other_reading" in {each.kind for each in reviewed.findings} and not looked
    assert assistant.check("SELECT COUNT(*) FROM orders", question, readings=True) and looked
