"""Guards WikiSQL's questions against SQL that nobody asked for, ambiguous schemas, and held-out tables in the training data."""

import json
from pathlib import Path
from random import Random

import duckdb
import pytest
from sqlglot import exp

from eval.datasets.gold_databases import TrainingDatabase
from eval.datasets.gold_sql import sql_text
from eval.datasets.official import DatasetError
from training.data.examples import Item
from training.data.options import Tally
from training.wikisql.parts import invented, is_held_out, wikisql_parts
from training.wikisql.questions import WikiColumn, WikiQuestion, WikiTable, canonical, load_wikisql
from training.wikisql.schemas import header_words, table_names

BOATS = WikiTable(
    "boats",
    (
        WikiColumn("boat", False),
        WikiColumn("berths", True),
        WikiColumn("home port", False),
        WikiColumn("length (m)", True),
    ),
    (),
)


def _asked(text: str, select: str, aggregate: str, *conditions: tuple[str, str, str]) -> WikiQuestion | None:
    return canonical(WikiQuestion(text, select, aggregate, conditions), BOATS)


def _file(folder: Path, tables: int) -> Path:
    """A WikiSQL file of invented tables in the folder, which is returned."""
    (folder / "wikisql").mkdir()
    with (folder / "wikisql" / "train.jsonl").open("w") as lines:
        for number in range(tables):
            lines.write(json.dumps(_entry(number)) + "\n")
    return folder


def _entry(number: int) -> dict[str, object]:
    kind = ("boat", "lighthouse", "ferry")[number % 3]
    columns = [
        {"name": kind, "type": "text", "values": [f"Gull {number}"]},
        {"name": "team", "type": "text", "values": ["Red Oars"]},
        {"name": "berths #", "type": "number", "values": ["1,200"]},
        {"name": "2010", "type": "number", "values": []},
        {"name": "order", "type": "text", "values": []},
    ]
    questions: list[dict[str, object]] = [
        {"question": f"How many berths does gull {number} have?", "select": "berths #", "aggregate": None},
        {"question": f"Which {kind} has more than 1,200 berths and team red oars?", "select": kind, "aggregate": None},
        {"question": "What is the average of 2010 for team Red Oars?", "select": "2010", "aggregate": "AVG"},
        {"question": f"What is the order of Gull {number}?", "select": "order", "aggregate": None},
    ]
    named, team = [kind, "=", f"Gull {number}"], ["team", "=", "Red Oars"]
    conditions = [[named], [["berths #", ">", "1,200"], team], [team], [named]]
    for question, own in zip(questions, conditions, strict=True):
        question["conditions"] = own
    return {"table": f"1-{number}-1", "columns": columns, "questions": questions}


@pytest.fixture
def made(tmp_path: Path) -> list[tuple[TrainingDatabase, list[Item]]]:
    tables = load_wikisql(_file(tmp_path, 60))
    found = []
    for database, items in invented(tables, 1.0, tmp_path, Random(1), Tally()):
        for item in items:  # while the database is open
            result = database.engine.execute(sql_text(item.target.tree))
            assert getattr(result, "rows", ()), sql_text(item.target.tree)
        found.append((database, items))
    return found


def test_an_aggregate_that_no_word_asks_for_is_dropped() -> None:
    port = ("home port", "=", "Cadiz")
    kept = _asked("In what length is the boat of Cadiz?", "length (m)", "SUM", port)
    assert kept is not None and kept.aggregate == ""
    for text, aggregate in (
        ("What is the total length of the boats in Cadiz?", "SUM"),
        ("What is the average length in Cadiz?", "AVG"),
        ("What is the longest length in Cadiz?", "MAX"),
        ("What is the fewest berths in Cadiz?", "MIN"),
    ):
        kept = _asked(text, "length (m)", aggregate, port)
        assert kept is not None and kept.aggregate == aggregate


def test_a_comparison_is_no_superlative() -> None:
    kept = _asked("Which length has less than 7 berths?", "length (m)", "MIN", ("berths", "<", "7"))
    assert kept is not None and kept.aggregate == ""


@pytest.mark.parametrize(
    ("text", "select", "aggregate", "condition"),
    [
        ("How many berths are there in Cadiz?", "berths", "COUNT", ("home port", "=", "Cadiz")),
        ("What is the total number of berths in Cadiz?", "berths", "SUM", ("home port", "=", "Cadiz")),
        ("Which boat is at home in Lisbon?", "boat", "", ("home port", "=", "Cadiz")),
        ("Which boat is shorter than ten?", "boat", "", ("length (m)", "<", "ten")),
        ("Which boat is it in Cadiz?", "boat", "", ("home port", ">", "Cadiz")),
        ("What is the average boat in Cadiz?", "boat", "AVG", ("home port", "=", "Cadiz")),
        ("Which home port is Cadiz, please?", "home port", "", ("home port", "=", "Cadiz")),
    ],
)
def test_a_question_that_its_sql_does_not_fit_is_left_out(
    text: str, select: str, aggregate: str, condition: tuple[str, str, str]
) -> None:
    assert _asked(text, select, aggregate, condition) is None


def test_rows_are_counted_and_not_a_column(made: list[tuple[TrainingDatabase, list[Item]]]) -> None:
    sqls = [sql_text(item.target.tree) for _, items in made for item in items]
    assert len(sqls) > 100 and not any("COUNT(" in sql for sql in sqls)
    assert any(" 1200" in sql for sql in sqls) and not any("1,200" in sql for sql in sqls)


def test_every_query_binds_in_duckdb(made: list[tuple[TrainingDatabase, list[Item]]]) -> None:
    """Guards types and quoting: a text compared with a number binds in SQLite, which would not notice."""
    for database, items in made:
        with duckdb.connect() as connection:
            for table in database.schema.tables:
                columns = ", ".join(f'"{column.name}" {column.type or "TEXT"}' for column in table.columns)
                connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
            for item in items:
                connection.execute(sql_text(item.target.tree)).fetchall()


def test_schemas_have_one_to_three_tables_keys_and_names_in_many_styles(
    made: list[tuple[TrainingDatabase, list[Item]]],
) -> None:
    schemas = [database.schema for database, _ in made]
    assert {len(schema.tables) for schema in schemas} >= {1, 2, 3}
    assert any(table.foreign_keys for schema in schemas for table in schema.tables)
    names = {column.name for schema in schemas for table in schema.tables for column in table.columns}
    assert {"berths_number", "BerthsNumber", "berths #"} & names and len(names) > 30
    assert any(" JOIN " in sql_text(item.target.tree) for _, items in made for item in items)
    for schema in schemas:
        assert len({table.name.casefold() for table in schema.tables}) == len(schema.tables)


def test_values_are_those_that_the_agent_finds(made: list[tuple[TrainingDatabase, list[Item]]]) -> None:
    values = [value for _, items in made for item in items for value in item.values]
    assert any(value.value != value.phrase for value in values), "no cell is written unlike the question"
    unseen = [item for _, items in made for item in items if not _literals(item) <= {v.value for v in item.values}]
    assert 0 < len(unseen) < 30 and all(text in item.text for item in unseen for text in _literals(item))


def _literals(item: Item) -> set[str]:
    return {each.name for each in item.target.tree.find_all(exp.Literal) if each.is_string}


def test_two_tables_that_both_fit_are_told_apart_or_left_out(tmp_path: Path) -> None:
    """Two equal tables with equal values: no schema of both may ask for either."""
    table = load_wikisql(_file(tmp_path, 1))[0]
    twins = [table, WikiTable("1-9-9", table.columns, table.questions)]
    for seed in range(8):
        for database, items in invented(twins, 1.0, tmp_path, Random(seed), Tally()):
            whole = [t for t in database.schema.tables if len(t.columns) > 2]
            assert len(whole) == 1 or not items


def test_held_out_tables_are_the_same_for_every_seed_and_never_trained_on(tmp_path: Path) -> None:
    parts = wikisql_parts(_file(tmp_path, 90))
    apart = {table.id for name, tables in parts.items() if is_held_out(name) for table in tables}
    assert 1 <= len(apart) <= 4
    assert not apart & {table.id for name, tables in parts.items() if not is_held_out(name) for table in tables}
    assert parts == wikisql_parts(tmp_path)


def test_names_come_from_headers_and_questions() -> None:
    assert header_words("pick #") == ("pick", "number") and header_words("GDP (US$ bn)") == ("gdp", "us", "usd", "bn")
    golfers = WikiTable("g", (WikiColumn("player", False), WikiColumn("to par", False)), ())
    assert table_names(golfers)[0] == "leaderboard"
    asked = tuple(WikiQuestion(f"Which lighthouse is at {n}?", "lamp", "", ()) for n in range(6))
    assert "lighthouses" in table_names(WikiTable("l", (WikiColumn("lamp", False),), asked))


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wikisql").mkdir()
    (tmp_path / "wikisql" / "train.jsonl").write_text('{"tables": 1}\n')
    with pytest.raises(DatasetError, match="WikiSQL"):
        load_wikisql(tmp_path)
    assert load_wikisql(tmp_path / "nowhere") == []
