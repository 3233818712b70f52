"""Other plans of the shipped model: likely ones that leave its own, greedy after that, and samples where no grammar helps."""

from collections.abc import Iterator

import pytest

from agent.assemble import ModelChoice, load_model
from agent.calibration import Calibration
from agent.context import OTHER_PLANS, AgentContext, AgentOptions, ReadingWatch
from agent.conversation import Conversation
from agent.nodes import assess
from agent.nodes.assess import other_plans
from agent.observe.step_record import Step
from agent.state import DrawnPlan, State
from tests.agent.conftest import Talk
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database

QUESTION = "Which customers bought the most albums?"
Found = tuple[list[DrawnPlan], list[Step]]


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    opened = open_database(example_database(tmp_path_factory.mktemp("example")))
    yield opened
    opened.close()


def asked(
    shops: Database, question: str = QUESTION, options: AgentOptions | None = None, plans: int = OTHER_PLANS
) -> tuple[State, Found]:
    """The state of the answer when others are looked for, and the plans that were found."""
    seen: list[tuple[State, Found]] = []

    def watched(state: State, toolbox: AgentContext) -> Found:
        plans, steps = other_plans(state, toolbox)
        seen.append((state, ([*plans], [*steps])))
        return plans, steps

    toolbox = load_model(ModelChoice()).toolbox(shops, options or AgentOptions())
    toolbox.watch = ReadingWatch(lambda readings: None, plans=plans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assess, "other_plans", watched)
        Conversation(toolbox).ask(question)
    return seen[0]


@pytest.fixture(scope="module")
def found(shops: Database) -> tuple[State, Found]:
    return asked(shops)


def test_each_plan_leaves_the_models_own_at_one_place(shops: Database, found: tuple[State, Found]) -> None:
    """Guards against samples, which repeat a plan, and against plans that a grammar would not allow."""
    state, (plans, steps) = found
    texts = [plan["text"] for plan in plans]
    assert texts[0] == state["first_plans"][state["reading"]]["text"]
    assert OTHER_PLANS / 2 < len(texts) == len(set(texts)) <= OTHER_PLANS + 1
    assert sum(plan["drawn"] for plan in plans) == OTHER_PLANS + 1
    known = {table.name.lower() for table in shops.schema().tables}
    assert all(part.split(":")[0].strip().lower() in known for text in texts for part in text.split("|")[0].split(";"))
    assert [(step.name, step.detail) for step in steps] == [("plan", ""), ("plan", "")]


def test_whoever_watches_says_how_many(shops: Database, found: tuple[State, Found]) -> None:
    """The likelier ones are the same, asked once more."""
    few, more = found[1][0], asked(shops, plans=6)[1][0]
    assert sum(plan["drawn"] for plan in more) == 7
    assert [plan["text"] for plan in more][: len(few)] == [plan["text"] for plan in few]


def test_without_a_grammar_they_are_samples(shops: Database) -> None:
    _, (plans, steps) = asked(shops, "How many customers are there?", AgentOptions(constrain=False))
    assert sum(plan["drawn"] for plan in plans) == OTHER_PLANS
    assert len(steps) == 1


def test_a_remote_model_is_sampled(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = talk(
        "singer: name | SELECT _ FROM _",
        "SELECT name FROM singer",
        *["a: b | c"] * OTHER_PLANS,
        "SELECT 1",
        rerank=True,
    )
    conversation.toolbox.calibration = Calibration(0.5, {}, 0.5)
    drawn: list[int] = []
    conversation.toolbox.watch = ReadingWatch(lambda readings: drawn.extend(one.votes for one in readings))
    conversation.ask("Which singers are from Spain?")
    assert sum(drawn) == OTHER_PLANS
