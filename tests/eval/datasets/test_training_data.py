"""Guards the training data against leaking dev questions, against wrong SQL and against schemas that do not match it.

Guards against training on prompts that the agent never builds: each is compared, byte for byte, with what a scripted
model is asked in a real conversation on the same database.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import BaseMessage
from sqlglot import exp

from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from agent.prompts.slots import Plan, PlanError, PlannedTable, parse_plan
from eval.datasets.gold_databases import TrainingDatabase, open_training
from eval.datasets.gold_sql import normalise, parse, plan_answer, sql_text
from eval.datasets.official import HELD_OUT_DATABASES, Question, load_dev, load_questions, without_dev
from eval.datasets.selection import load_dataset
from tests.agent.conftest import OwnDialect
from tools.schema import Column, Schema, Table
from training.data.build import build, items
from training.data.examples import Item, Manner, Setting, pairs
from training.data.options import Options, Tally
from training.packs.groups import read_groups
from training.variants.mistakes import read_synonyms
from training.variants.schemas import Naming, draw, original, rename_sql

SLICE = Options(variants=1, databases=("department_management", "farm"))


@pytest.fixture
def farm(spider: Path, tmp_path: Path) -> Iterator[TrainingDatabase]:
    database = open_training(spider.parent, _questions(spider, "farm"), tmp_path)
    yield database
    database.close()


def _questions(spider: Path, db_id: str) -> list[Question]:
    return [q for q in load_questions(spider.parent) if q.db_id == db_id]


def _words(text: str) -> int:
    return len(text.split())


def _build(spider: Path, out: Path, options: Options = SLICE) -> list[str]:
    """Build, and what was reported."""
    lines: list[str] = []
    build(spider.parent, out, options, _words, lines.append)
    return lines


def test_no_dev_database_and_no_dev_question_is_trained_on(spider: Path) -> None:
    dev = load_dev(spider.parent)
    kept, left_out = without_dev(load_questions(spider.parent), dev)
    texts = {" ".join(e.question.casefold().split()).rstrip(" ?.!") for e in load_dataset("spider", spider)}
    assert len(texts) > 900 and texts <= dev.texts
    assert not {q.db_id for q in kept} & {e.db_id for e in load_dataset("spider", spider)}
    assert not {q.db_id for q in kept} & dev.db_ids
    assert not {" ".join(q.text.casefold().split()).rstrip(" ?.!") for q in kept} & texts
    assert 0 < len(left_out) < 200
    assert len(set(HELD_OUT_DATABASES)) == 10 and set(HELD_OUT_DATABASES) <= {q.db_id for q in kept}


def test_a_planted_dev_question_is_left_out(spider: Path) -> None:
    """The guard itself must be able to fail: the same text with other spaces, and a dev database's name."""
    dev = load_dev(spider.parent)
    text = load_dataset("spider", spider, limit=1)[0].question
    planted = [
        Question("spider/0", "spider", "farm", f"  {text.upper()} ", "SELECT 1"),
        Question("spider/1", "spider", "concert_singer", "Anything?", "SELECT 1"),
        Question("spider/2", "spider", "farm", "Which farm has the tallest silo?", "SELECT 1"),
    ]
    kept, left_out = without_dev(planted, dev)
    assert [q.id for q in kept] == ["spider/2"] and left_out == ["spider/0", "spider/1"]


def test_the_same_options_give_the_same_bytes_and_parts_are_kept(spider: Path, tmp_path: Path) -> None:
    """Guards against hash order in the output, and against a resumed build that differs from a fresh one."""
    for name in ("one", "two"):
        _build(spider, tmp_path / name)
    train = (tmp_path / "one" / "train.jsonl").read_bytes()
    assert train == (tmp_path / "two" / "train.jsonl").read_bytes()
    for file in (tmp_path / "two" / "parts").glob("farm.*"):
        file.unlink()
    kept = (tmp_path / "two" / "parts" / "department_management.jsonl").stat().st_mtime_ns
    _build(spider, tmp_path / "two")
    assert train == (tmp_path / "two" / "train.jsonl").read_bytes()
    assert kept == (tmp_path / "two" / "parts" / "department_management.jsonl").stat().st_mtime_ns


def test_groups_are_what_the_trainer_reads(spider: Path, tmp_path: Path) -> None:
    """Guards the file format, and against held-out questions in the training file."""
    options = Options(variants=1, databases=("farm", "aircraft"))
    _build(spider, tmp_path, options)
    train, held_out = (list(read_groups(tmp_path / name)) for name in ("train.jsonl", "held_out.jsonl"))
    assert len(held_out) == 1 and len(train) > 5
    assert not {group.prefix for group in train} & {group.prefix for group in held_out}
    for group in train + held_out:
        assert group.prefix.endswith("\n") and "\n" not in group.pairs[0].answer
        assert all(pair.prompt.startswith("dialect: ") and pair.answer.startswith(" ") for pair in group.pairs)
    skeletons = (tmp_path / "skeletons.txt").read_text(encoding="utf-8").splitlines()
    plans = [parse_plan(pair.answer).skeleton for group in train for pair in group.pairs if pair.step == "plan"]
    assert set(skeletons) == set(plans) and plans.count(skeletons[0]) == max(map(plans.count, skeletons))
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["held_out"] == ["aircraft"] and manifest["prompt_version"] == 2
    assert manifest["train"]["pairs"] == sum(len(group.pairs) for group in train)
    assert len({group.prefix for group in train}) == len(train)


def test_fewer_queries_leave_every_plan_and_what_is_held_out(spider: Path, tmp_path: Path) -> None:
    """Plans are what is hard to learn, and cost half of the tokens of plan and query."""
    _build(spider, tmp_path, Options(variants=1, queries=0.3, follow_ups=0, databases=("farm", "aircraft")))

    def count(name: str, step: str) -> int:
        return sum(pair.step == step for group in read_groups(tmp_path / name) for pair in group.pairs)

    assert count("held_out.jsonl", "plan") == count("held_out.jsonl", "generate")
    plans = count("train.jsonl", "plan")
    assert 0.15 * plans < count("train.jsonl", "generate") < 0.45 * plans


def test_an_answer_that_the_agent_would_cut_off_is_left_out(spider: Path, tmp_path: Path) -> None:
    manifest = build(spider.parent, tmp_path, SLICE, lambda text: 1000, lambda line: None)
    assert manifest["train"]["pairs"] == 0 and manifest["train"]["left_out"]["plan is too long"] > 50


def test_normalised_gold_is_in_one_style(farm: TrainingDatabase) -> None:
    gold = "select T2.official_name from farm_competition as T1 inner join city as T2 on T2.city_id = T1.host_city_id"
    wanted = "SELECT city.Official_Name FROM farm_competition JOIN city ON farm_competition.Host_city_ID = city.City_ID"
    text = sql_text(normalise(gold, farm.schema))
    assert text == wanted == sql_text(normalise(text, farm.schema))
    negated = "SELECT year FROM farm WHERE farm_id NOT IN (SELECT farm_id FROM farm WHERE pigs IS NOT NULL)"
    wanted = "SELECT Year FROM farm WHERE Farm_ID NOT IN (SELECT Farm_ID FROM farm WHERE Pigs IS NOT NULL)"
    assert sql_text(normalise(negated, farm.schema)) == wanted


def test_a_table_that_stands_twice_keeps_its_aliases(farm: TrainingDatabase) -> None:
    """Guards against `farm JOIN farm`, whose columns nobody can tell apart."""
    gold = "SELECT a.Year FROM farm AS a JOIN farm AS b ON a.Pigs = b.Cows WHERE b.Year > 1900"
    text = sql_text(normalise(gold, farm.schema))
    assert text == "SELECT T1.Year FROM farm AS T1 JOIN farm AS T2 ON T1.Pigs = T2.Cows WHERE T2.Year > 1900"


def test_renamed_gold_gives_the_same_rows_on_a_renamed_copy(spider: Path, tmp_path: Path) -> None:
    """The whole renaming, checked by an engine: tables and columns of a copy are renamed and both queries run."""
    questions = _questions(spider, "department_management") + _questions(spider, "department_store")[:60]
    for db_id in ("department_management", "department_store"):
        own = [q for q in questions if q.db_id == db_id]
        database = open_training(spider.parent, own, tmp_path)
        naming = _new_names(database.schema)
        copy = tmp_path / f"{db_id}-renamed.sqlite"
        shutil.copy(spider / "database" / db_id / f"{db_id}.sqlite", copy)
        with closing(sqlite3.connect(copy)) as renamed:
            for table in database.schema.tables:
                for column in table.columns:
                    new = naming.column(table.name, column.name)
                    renamed.execute(f'ALTER TABLE "{table.name}" RENAME COLUMN "{column.name}" TO "{new}"')
            for table in database.schema.tables:
                renamed.execute(f'ALTER TABLE "{table.name}" RENAME TO "{naming.table(table.name)}"')
            for question in own:
                tree = normalise(question.gold, database.schema)
                result = database.engine.execute(sql_text(tree))
                sql = sql_text(rename_sql(tree, database.schema, naming))
                assert renamed.execute(sql).fetchall() == list(getattr(result, "rows", [])), sql
        database.close()


def _new_names(schema: Schema) -> Naming:
    """Every name is new, some with spaces, so that a name left behind cannot bind."""
    tables = {table.name: f"x {table.name}" for table in schema.tables}
    columns = {(t.name, c.name): f"{c.name}_of_{n}" for n, t in enumerate(schema.tables) for c in t.columns}
    return Naming(tables, columns)


def test_variants_differ_and_keep_what_the_sql_needs(farm: TrainingDatabase) -> None:
    guests = (Table("guest", (Column("one", "TEXT"), Column("two", "TEXT"))),)
    synonyms = {"city": ["town"], "year": ["season"]}
    needed = {("city", "Official_Name"), ("farm_competition", "Theme")}
    drawn = [draw(farm.schema, needed, guests, synonyms, Random(seed)) for seed in range(40)]
    assert len({variant.schema for variant in drawn}) > 30
    for variant in drawn:
        for table, column in needed:
            new = variant.schema.table(variant.naming.table(table))
            assert new is not None and new.column(variant.naming.column(table, column)) is not None
    assert any(variant.schema.table("town") for variant in drawn)
    names = {variant.naming.column("farm_competition", "Theme").casefold() for variant in drawn}
    assert {"theme"} < names <= {"theme", "the", "them", "thm"}
    assert draw(farm.schema, needed, guests, synonyms, Random(7)) == drawn[7]


def test_follow_ups_run_and_differ_from_what_they_follow(spider: Path, farm: TrainingDatabase) -> None:
    found = items(_questions(spider, "farm"), farm, 1.0, Random(0), Tally())
    followed = [item for item in found if item.history]
    assert len(followed) > 20 and len({item.id.rsplit("/", 1)[1] for item in followed}) > 2
    for item in followed:
        first = item.history[0][1].tree
        assert item.target.rows and item.target.tree != first


def test_plans_can_be_read_back(spider: Path, farm: TrainingDatabase) -> None:
    for question in _questions(spider, "farm"):
        plan = plan_answer(normalise(question.gold, farm.schema), farm.schema)
        assert parse_plan(plan.text()) == plan and plan.tables
    odd = Plan((PlannedTable("a; b", ('x "y"', "z: |")), PlannedTable("t")), "SELECT _")
    assert odd.text() == '"a; b": "x ""y""", "z: |"; t | SELECT _' and parse_plan(odd.text()) == odd


@pytest.mark.parametrize("text", ["", "singer: name", "a: b: c | SELECT _", "a, b | SELECT _", "; | SELECT"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        parse_plan(text)


def test_the_plan_names_what_the_sql_needs_beyond_joins(farm: TrainingDatabase) -> None:
    gold = "SELECT T2.Official_Name FROM farm_competition AS T1 JOIN city AS T2 ON T1.Host_city_ID = T2.City_ID"
    plan = plan_answer(normalise(f"{gold} WHERE T1.Year > 2000", farm.schema), farm.schema)
    assert plan.text() == "farm_competition: Year; city: Official_Name | SELECT _ FROM _, _ WHERE _ > _"


def test_synonyms_are_read_off_the_two_wordings() -> None:
    pairs = [("List the cities of the heads.", "List the towns of the leaders.")] * 2
    assert read_synonyms(pairs)["head"] == ["leader"] and read_synonyms(pairs)["leader"] == ["head"]


def test_output_names_are_not_renamed(farm: TrainingDatabase) -> None:
    """Guards against `ORDER BY` of an alias that is a column's name elsewhere."""
    tree = normalise("SELECT Theme, COUNT(*) AS Year FROM farm_competition GROUP BY Theme ORDER BY Year", farm.schema)
    naming = Naming({}, {("farm_competition", "Year"): "season", ("farm_competition", "Theme"): "motto"})
    wanted = "SELECT motto, COUNT(*) AS Year FROM farm_competition GROUP BY motto ORDER BY Year"
    assert sql_text(rename_sql(tree, farm.schema, naming)) == wanted
    assert isinstance(parse(wanted, "sqlite"), exp.Select)


def test_databases_without_a_file_can_be_made_from_their_names(spider: Path, tmp_path: Path) -> None:
    """Guards against descriptions that no engine takes: soccer_1 lists SQLite's own sqlite_sequence."""
    by_name: dict[tuple[str, str], list[Question]] = {}
    for question in load_questions(spider.parent):
        if question.source == "bird" or question.db_id in ("baseball_1", "soccer_1"):
            by_name.setdefault((question.source, question.db_id), []).append(question)
    assert len(by_name) > 60
    for questions in by_name.values():
        database = open_training(spider.parent, questions, tmp_path)
        assert database.schema.tables and not database.has_rows
        database.close()


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
