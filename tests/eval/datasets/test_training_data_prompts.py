"""Guards against training on prompts that the agent never builds: each is compared, byte for byte, with what a scripted
model is asked in a real conversation on the same database."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import BaseMessage

from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from eval.datasets.gold_databases import TrainingDatabase, open_training
from eval.datasets.official import load_questions
from tests.agent.conftest import OwnDialect
from training.data.build import items
from training.data.examples import Item, Manner, Setting, pairs
from training.data.options import Tally
from training.variants.schemas import original


class Listener(FakeListChatModel):
    """Says its lines and keeps what it was asked."""

    asked: list[str] = []  # noqa: RUF012  # pydantic copies it for each model

    def _stream(self, messages: list[BaseMessage], *args: Any, **kw: Any) -> Any:
        self.asked.append(str(messages[-1].content))
        return super()._stream(messages, *args, **kw)

    def _call(self, messages: list[BaseMessage], *args: Any, **kw: Any) -> str:
        self.asked.append(str(messages[-1].content))
        return super()._call(messages, *args, **kw)


def _ready(spider: Path, scratch: Path, db_id: str, source: str) -> tuple[TrainingDatabase, list[Item]]:
    every = load_questions(spider.parent)
    questions = [q for q in every if (q.db_id, q.source == "bird") == (db_id, source == "bird")][:30]
    database = open_training(spider.parent, questions, scratch)
    return database, items(questions, database, 1.0, Random(0), Tally())


def _setting(database: TrainingDatabase) -> Setting:
    return Setting(database, original(database.schema), database.engine)


def _asked(setting: Setting, item: Item, lines: Sequence[str]) -> list[str]:
    """What a conversation asks its model, which says `lines`, about the item's last question."""
    model = Listener(responses=list(lines))
    options = AgentOptions(constrain=False, max_attempts=3)
    talk = Conversation(AgentContext(setting.bare, model, OwnDialect(), options))
    talk.ask(item.text, item.evidence)
    return model.asked


def test_prompts_are_the_agents_own(spider: Path, tmp_path: Path) -> None:
    database, found = _ready(spider, tmp_path, "department_management", "spider")
    setting, refined = _setting(database), 0
    for item in [item for item in found if not item.history]:
        made = list(pairs(item, setting, Manner(refine=1.0), Random(item.id)))
        prompts = {placed.step: placed.prefix + placed.pair.prompt for placed in made}
        answers = {placed.step: placed.pair.answer.strip() for placed in made}
        lines = [answers["plan"], answers["generate"], answers["generate"]]
        if "refine" in prompts:
            lines[1] = prompts["refine"].split("\nsql: ")[1].split("\nerror: ")[0]
        asked = _asked(setting, item, lines)
        expected = [prompts[step] for step in ("plan", "generate", "refine") if step in prompts]
        assert asked[: len(expected)] == expected
        refined += "refine" in prompts
    assert refined > 5  # or the third kind of prompt was never compared
    database.close()


def test_prompts_without_rows_are_the_agents_own(spider: Path, tmp_path: Path) -> None:
    database, found = _ready(spider, tmp_path, "movie_platform", "bird")
    database = replace(database, schema=database.engine.schema())  # an empty file has no place for descriptions
    setting = _setting(database)
    for item in found[:10]:
        made = list(pairs(item, setting, Manner(refine=0.0), Random(0)))
        asked = _asked(setting, item, [placed.pair.answer.strip() for placed in made] * 2)
        assert asked[:2] == [placed.prefix + placed.pair.prompt for placed in made]
    database.close()


def test_a_follow_up_is_asked_as_the_second_turn(spider: Path, tmp_path: Path) -> None:
    """Guards against a history that the agent would write differently."""
    database, found = _ready(spider, tmp_path, "department_management", "spider")
    setting = _setting(database)
    followed = [item for item in found if item.kind == "leaning"]
    assert len(followed) > 5 and all(item.history for item in followed)
    for item in followed:
        (question, target), *_ = item.history
        first = next(i for i in found if i.id == item.id.rsplit("/", 1)[0])
        one, two = (list(pairs(i, setting, Manner(refine=0.0), Random(0))) for i in (first, item))
        model = Listener(responses=[placed.pair.answer.strip() for placed in [*one, *two]])
        options = AgentOptions(constrain=False, adapt=False)  # as the model alone has to answer it
        talk = Conversation(AgentContext(setting.bare, model, OwnDialect(), options))
        for text in (question, item.text):
            talk.ask(text)
        assert model.asked == [placed.prefix + placed.pair.prompt for placed in [*one, *two]]
        assert target is first.target
    database.close()
