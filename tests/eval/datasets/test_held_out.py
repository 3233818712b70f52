"""The questions on held-out databases, and the follow-ups made from them.

Second questions of the training data: which kinds there are, what they share with the first, what a contrast exchanges.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from sqlglot import exp

from agent.assemble import LoadedModel, ModelChoice
from agent.context import AgentContext, AgentOptions
from agent.prompts.profiles import load_profile
from eval.accuracy.predict import AgentPredict
from eval.accuracy.run import Scorer, fingerprint
from eval.datasets.gold_databases import TrainingDatabase, open_training
from eval.datasets.gold_sql import parse, real_tables, sql_text
from eval.datasets.official import HELD_OUT_DATABASES, Example, database_file, spider_questions
from eval.datasets.selection import load_dataset
from eval.scoring.spider_rules import SPIDER
from tests.agent.conftest import ScriptedModel
from tools.result import Limits
from tools.schema import Column, ForeignKey, Schema, Table
from training.data.build import build, items
from training.data.examples import Item
from training.data.options import Options, Tally
from training.data.parts import KINDS
from training.variants.mistakes import EXCHANGES


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
    scorer = Scorer(SPIDER, "sqlite", 30.0, 0)
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


SCHEMA = Schema(
    (
        Table(
            "singer",
            (
                Column("singer_id", "INTEGER", primary_key=True),
                Column("name", "TEXT"),
                Column("country", "TEXT", samples=("France", "Spain")),
                Column("genre", "TEXT"),
                Column("age", "INTEGER", samples=("31", "45")),
                Column("score", "DOUBLE", samples=("x1", "x2")),
            ),
        ),
        Table("concert", (Column("concert_id", "INTEGER"),), (ForeignKey(("concert_id",), "singer", ("singer_id",)),)),
    ),
    "sqlite",
)


@pytest.fixture(scope="module")
def database(spider: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingDatabase]:
    questions = [question for question in spider_questions(spider.parent) if question.db_id == "network_2"]
    opened = open_training(spider.parent, questions, tmp_path_factory.mktemp("scratch"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def found(spider: Path, database: TrainingDatabase) -> list[Item]:
    questions = [question for question in spider_questions(spider.parent) if question.db_id == database.db_id]
    return items(questions, database, 1.0, Random(0), Tally())


def _tables(tree: exp.Query, database: TrainingDatabase) -> set[str]:
    return {name for _, name in real_tables(tree, database.schema)}


def test_there_is_one_second_question_of_some_kind_to_each(found: list[Item]) -> None:
    """Guards the share, of which no kind takes all, and ids that no two items share."""
    assert len({item.id for item in found}) == len(found)
    kinds = Counter(item.kind for item in found if item.history)
    assert set(kinds) == set(KINDS) and min(kinds.values()) > 3
    firsts = [item for item in found if not item.kind]
    assert 0.6 * len(firsts) < sum(kinds.values()) <= len(firsts)


def test_an_unrelated_question_is_another_one_that_shares_no_table(
    found: list[Item], database: TrainingDatabase
) -> None:
    """Guards against a history that would help; the same question without history is among the items."""
    known = {(item.text, sql_text(item.target.tree)) for item in found if not item.kind}
    unrelated = [item for item in found if item.kind == "unrelated"]
    for item in unrelated:
        tree, (_, former) = item.target.tree, item.history[0]
        assert not _tables(tree, database) & _tables(former.tree, database)
        assert (item.text, sql_text(tree)) in known


def test_a_contrast_differs_in_words_and_rows_and_is_asked_with_and_without_history(found: list[Item]) -> None:
    contrasts = [item for item in found if item.kind == "contrast"]
    behind = {item.id: item for item in contrasts if item.history}
    alone = {item.id.removesuffix("-alone"): item for item in contrasts if not item.history}
    assert behind.keys() == alone.keys() and len(behind) > 3
    for name, item in behind.items():
        text, former = item.history[0]
        assert item.text != text and item.target.tree != former.tree
        assert (alone[name].text, alone[name].target) == (item.text, item.target)
        assert item.target.rows


@pytest.mark.parametrize(
    ("kind", "text", "sql", "new_text", "new_sql"),
    [
        ("group", "How many for each country?", "SELECT country, COUNT(*) FROM singer GROUP BY country",
         "How many for each genre?", "SELECT genre, COUNT(*) FROM singer GROUP BY genre"),
        ("group", "What are the countries?", "SELECT country FROM singer GROUP BY country",
         "What are the genres?", "SELECT genre FROM singer GROUP BY genre"),
        ("value", "Who is from france?", "SELECT name FROM singer WHERE country = 'France'",
         "Who is from Spain?", "SELECT name FROM singer WHERE country = 'Spain'"),
        ("value", "Who is 31?", "SELECT name FROM singer WHERE age = 31",
         "Who is 45?", "SELECT name FROM singer WHERE age = 45"),
        ("table", "How many singers are there?", "SELECT COUNT(*) FROM singer",
         "How many concerts are there?", "SELECT COUNT(*) FROM concert"),
    ],
)  # fmt: skip
def test_what_a_contrast_exchanges(kind: str, text: str, sql: str, new_text: str, new_sql: str) -> None:
    """Guards words and query together, over every draw: one changed without the other is a wrong answer to learn."""
    made = {_exchanged(kind, text, sql, seed) for seed in range(20)}
    assert (new_text, new_sql) in made
    for said, query in made:
        assert said != text and query != sql
        assert said.lower().count("country") == query.lower().count("country") == 0 or "country" in new_sql


@pytest.mark.parametrize(
    ("kind", "text", "sql"),
    [
        ("group", "How many by land?", "SELECT country, COUNT(*) FROM singer GROUP BY country"),
        ("group", "Countries by country?", "SELECT country, COUNT(*) FROM singer GROUP BY country"),
        ("group", "Number by country?", "SELECT country, COUNT(DISTINCT country) FROM singer GROUP BY country"),
        ("group", "Not French, by country?", "SELECT country FROM singer WHERE country <> 'France' GROUP BY country"),
        ("value", "Who is French?", "SELECT name FROM singer WHERE country = 'France'"),
        ("value", "Who is from France?", "SELECT name FROM singer WHERE country <> 'France'"),
        ("value", "Who has 2.5?", "SELECT name FROM singer WHERE score = 2.5"),
        ("table", "How many singers are old?", "SELECT COUNT(*) FROM singer WHERE age > 60"),
        ("table", "How many singers and concerts?", "SELECT COUNT(*) FROM singer"),
        ("table", "How many of them are there?", "SELECT COUNT(*) FROM singer"),
    ],
)
def test_where_nothing_can_be_exchanged_for_sure_nothing_is(kind: str, text: str, sql: str) -> None:
    assert {_exchanged(kind, text, sql, seed) for seed in range(20)} == {(None, sql)}


def _exchanged(kind: str, text: str, sql: str, seed: int) -> tuple[str | None, str]:
    tree = parse(sql, "sqlite")
    assert isinstance(tree, exp.Select)
    return EXCHANGES[kind](text, tree, SCHEMA, Random(seed)), sql_text(tree)


def test_the_manifest_counts_each_kind(spider: Path, tmp_path: Path) -> None:
    options = Options(variants=0, follow_ups=1.0, databases=("network_2",), spider_syn=0, bird=0)
    build(spider.parent, tmp_path, options, lambda text: len(text.split()), lambda line: None)
    counts = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["train"]["by_kind"]
    for kind in ("", "follow-up leaning ", "follow-up unrelated ", "follow-up contrast ", "contrast "):
        assert counts[f"spider {kind}plan"] > 3
    assert counts["spider contrast plan"] == counts["spider follow-up contrast plan"]
