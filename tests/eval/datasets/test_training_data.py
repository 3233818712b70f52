"""Guards the training data against leaking dev questions, against wrong SQL and against schemas that do not match it."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from sqlglot import exp

from agent.prompts.plan_format import Plan, PlanError, PlannedTable, parse_plan
from eval.datasets.gold_databases import TrainingDatabase, open_training
from eval.datasets.gold_sql import normalise, parse, plan_answer, sql_text
from eval.datasets.official import HELD_OUT_DATABASES, Question, load_dev, load_questions, without_dev
from eval.datasets.selection import load_dataset
from tools.schema import Column, Schema, Table
from training.data.build import build, items
from training.data.options import Options, Tally
from training.packs.groups import read_groups
from training.variants.mistakes import read_synonyms
from training.variants.schemas import Naming, draw, rename_sql

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
    """Every name anew, some with spaces, so that a name left behind cannot bind."""
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
