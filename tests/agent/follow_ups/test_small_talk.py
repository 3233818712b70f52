"""Greetings, thanks and what one may ask are answered in words; questions are not taken for them."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.small_talk import GOODBYE, MOST_TABLES, WELCOME, nothing_about, overview, small_talk
from tools.databases.open_database import open_database
from tools.example.build import example_database
from tools.example.questions import STARTERS
from tools.linking.link_schema import link
from tools.linking.match_values import ValueMatch
from tools.schema import Column, Schema, Table

SHOP = Schema(
    (Table("albums", (Column("title", "TEXT"),)), Table("artists", (Column("name", "TEXT"),))),
    "sqlite",
)
DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.mark.parametrize(
    ("said", "begins"),
    [
        ("hi", "Hello. There are 2 tables: albums, artists."), ("Hello there!", "Hello."), ("Good morning", "Hello."),
        ("HEY", "Hello."), ("thanks", WELCOME), ("Thank you very much!", WELCOME), ("ok, great, thanks", WELCOME),
        ("Thanks for the help", WELCOME), ("bye", GOODBYE), ("okay bye!", GOODBYE), ("help", "There are 2 tables"),
        ("What can I ask?", "There are 2 tables"), ("what can you do", "There are 2 tables"),
        ("What’s in this database?", "There are 2 tables"), ("Which tables are there?", "There are 2 tables"),
        ("show me all the tables", "There are 2 tables"), ("What is this data about?", "There are 2 tables"),
    ],
)  # fmt: skip
def test_what_is_said_to_a_person(said: str, begins: str) -> None:
    told = small_talk(said, SHOP)
    assert told is not None and told.startswith(begins)


@pytest.mark.parametrize(
    "asked",
    [
        "Hello, how many albums are there?", "hi albums", "thanks, and in France?", "Thank you letters by month",
        "Which albums are called Hello?", "help desk tickets", "What can artists do?", "and in France?", "albums", "",
        "What is the data of album 5?", "How many tables are there?", "goodbye songs", "?",
    ],
)  # fmt: skip
def test_questions_are_questions(asked: str) -> None:
    assert small_talk(asked, SHOP) is None


def told_of(question: str, name: str = "") -> str | None:
    return nothing_about(question, SHOP, link(SHOP, question, ()), (), name)


def test_who_asks_for_what_is_not_here_is_told_so() -> None:
    told = told_of("What is the weather like in spring?") or ""
    assert told.startswith(
        "Nothing here is about “weather” or “like” or “spring”. There are 2 tables: albums, artists."
    )


@pytest.mark.parametrize(
    "asked",
    [
        "How many albums are there?",
        "When were they released?",
        "Who is the best performer?",
        "How many are there?",
        "2 + 2?",
        "Anyone from Peru?",
        "Is “weather” there?",
        "Is anybody there?",
        "Slow?",
    ],
)
def test_what_may_be_about_the_data_is_asked(asked: str) -> None:
    assert told_of(asked) is None


def test_values_and_the_name_of_the_database_are_known_too() -> None:
    assert told_of("How many students are there?", "student_1") is None
    assert told_of("How many students are there?") is not None
    found = [ValueMatch("artists", "name", "Weather", "weather", 0.8)]
    assert nothing_about("What about weather?", SHOP, (), found) is None


def test_tables_of_a_restaurant_are_data() -> None:
    restaurant = Schema((Table("dining_table", (Column("seats", "INTEGER"),)),), "sqlite")
    assert small_talk("Which tables are there?", restaurant) is None
    assert small_talk("What can I ask?", restaurant) is not None


def test_the_bundled_data_are_introduced_by_questions_that_are_answered(tmp_path: Path) -> None:
    """They came from the schema before, such as the average quantity of the order lines."""
    with closing(open_database(example_database(tmp_path))) as shop:
        whole = shop.schema()
    told = small_talk("What can I ask?", whole, "needle_and_groove") or ""
    assert all(starter.question in told for starter in STARTERS[:3])
    shown = replace(whole, tables=tuple(table for table in whole.tables if table.name != "orders"))
    assert STARTERS[0].question not in overview(shown, "needle_and_groove")
    assert STARTERS[1].question not in overview(whole, "another")


def test_an_overview_is_short_and_its_examples_are_questions() -> None:
    many = Schema(tuple(Table(f"t{n}", (Column("name", "TEXT"),)) for n in range(30)), "sqlite")
    told = overview(many)
    assert f"t{MOST_TABLES - 1} and 22 more. Ask, for example: How many" in told
    assert overview(Schema((SHOP.tables[0],), "sqlite")).startswith("There is one table: albums.")
    assert overview(Schema((), "sqlite")) == "There are no tables here to ask about."


def test_no_question_of_a_benchmark_is_small_talk() -> None:
    files = [
        DATA / "spider" / "train_spider.json",
        DATA / "spider_syn" / "train_spider.json",
        DATA / "bird" / "train" / "train.json",
    ]
    asked = [entry for file in files if file.is_file() for entry in json.loads(file.read_text(encoding="utf-8"))]
    if not asked:
        pytest.skip("Spider data is not at ../shared/data")
    texts = {str(value) for entry in asked for key, value in entry.items() if "uestion" in key}
    assert len(texts) > 10_000
    assert [text for text in texts if small_talk(text, SHOP)] == []
