"""The questions on held-out databases, and the follow-ups made from them."""

from collections import Counter
from pathlib import Path

import pytest

from agent.assemble import LoadedModel, ModelChoice
from agent.context import AgentContext, AgentOptions
from agent.prompts.profiles import load_profile
from eval.accuracy.predict import AgentPredict
from eval.accuracy.run import Scorer, fingerprint
from eval.datasets.official import HELD_OUT_DATABASES, Example, database_file
from eval.datasets.selection import load_dataset
from eval.scoring.spider_rules import SPIDER
from tests.agent.conftest import ScriptedModel
from tools.result import Limits


@pytest.fixture(scope="module")
def follow_ups(spider: Path) -> list[Example]:
    return load_dataset("follow_ups", spider.parent)


def test_every_question_in_both_wordings(spider: Path) -> None:
    """Guards that the two differ in words alone, and that nothing else comes in."""
    plain, syn = (load_dataset(name, spider.parent) for name in ("held_out", "held_out/spider_syn"))
    assert len(plain) == len(syn) == 654
    assert {e.db_id for e in plain} == {e.db_id for e in syn} == set(HELD_OUT_DATABASES)
    assert all(example.executable and example.difficulty for example in plain)
    wordings = {(e.db_id, e.gold, e.question) for e in plain} & {(e.db_id, e.gold, e.question) for e in syn}
    assert 150 < len(wordings) < 300, "Spider-Syn leaves a third of the questions as they are"


def test_follow_ups_are_spread_over_databases_and_kinds(follow_ups: list[Example]) -> None:
    assert len(follow_ups) == len({example.id for example in follow_ups}) == 100
    assert Counter(example.db_id for example in follow_ups) == dict.fromkeys(HELD_OUT_DATABASES, 10)
    kinds = Counter(example.difficulty for example in follow_ups)
    assert set(kinds) == {"filter", "limit", "count", "sort", "group", "aggregate"}
    assert max(kinds.values()) < 35


def test_follow_ups_are_always_the_same_ones(follow_ups: list[Example], spider: Path) -> None:
    """Guards every figure that is compared over time."""
    assert load_dataset("follow_ups", spider.parent) == follow_ups
    assert fingerprint(follow_ups) == "100:f8d88a750113ed41"
    first = follow_ups[0]
    assert (first.id, first.question) == ("4800/count", "How many is that?")
    assert first.history == (("What are the descriptions for the aircrafts?", "SELECT Description FROM aircraft"),)


def test_follow_ups_and_first_turns_can_be_scored(follow_ups: list[Example]) -> None:
    """Guards that gold is right by its own rules, and the second query another than the first."""
    scorer = Scorer(SPIDER, "sqlite", None, 30.0, 0)
    try:
        verdicts = [scorer.verdict(example, example.gold) for example in follow_ups]
        firsts = [scorer.verdict(example, example.history[0][1]) for example in follow_ups]
    finally:
        scorer.close()
    assert all(verdict.correct for verdict in verdicts)
    assert all(first.error is None for first in firsts)
    assert sum(first.correct for first in firsts) < len(firsts) / 2


FIRST, SECOND = "SELECT name FROM author", "SELECT count(*) FROM author"


class _Scripted(LoadedModel):
    """A loaded model of which nothing is loaded: its toolboxes hold the script."""

    __slots__ = ()
    model: ScriptedModel

    def toolbox(self, database, options=None, limits=None):  # type: ignore[no-untyped-def]
        return AgentContext(database, type(self).model, load_profile("compact"), options, limits)


@pytest.mark.parametrize(
    ("first_turn", "script"), [("own", ["plan", "SELECT nothing", "plan", SECOND]), ("gold", ["plan", SECOND])]
)
def test_the_first_turn_is_answered_or_given(invented: Path, first_turn, script: list[str]) -> None:  # type: ignore[no-untyped-def]
    """Guards the count of questions put to the model, and that only the second one is measured."""
    _Scripted.model = ScriptedModel(responses=script)
    loaded = _Scripted(ModelChoice(), None, None)  # type: ignore[arg-type]
    options = AgentOptions(max_attempts=1, adapt=False)
    predict = AgentPredict(lambda: loaded, "sqlite", options, Limits(), first_turn)
    file = database_file(invented / "database", "library")
    example = Example("0/count", "library", "How many?", SECOND, database=file, history=(("The names", FIRST),))
    try:
        prediction = predict(example)
    finally:
        predict.close()
    assert prediction.sql == SECOND
    assert _Scripted.model.calls == len(script)
    assert [step["name"] for step in prediction.steps].count("generate") == 1
