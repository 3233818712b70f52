"""Guards the decision whether a question leans on the conversation: a history that is not needed made second questions fail.

Greetings, thanks and what one may ask are answered in words; questions are not taken for them.
"""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.follow_ups import relation_of, resolve, without_reset
from agent.nodes.link import GOODBYE, MOST_TABLES, WELCOME, nothing_about, of_all_rows, overview, small_talk
from agent.state import Turn
from tests.agent.spider_gold import DATA
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database
from tools.linking.link_schema import link, mentions
from tools.linking.match_values import ValueMatch
from tools.linking.questions import STARTERS
from tools.schema import Column, Schema, Table

FIRST = [Turn(question="How many singers are from Spain?", sql="SELECT COUNT(*) FROM singer WHERE country = 'Spain'")]
LEANING = (
    "And in France?",
    "what about Spain?",
    "... for each country?",
    "now by year",
    "only the ones from France",
    "Just the first three.",
    "sort them by age",
    "Sort by age, oldest first",
    "oldest first",
    "How many is that?",
    "How many are there?",
    "What are their names?",
    "Which concerts did they give?",
    "How many concerts does that singer have?",
    "Which one is the oldest?",
    "who has more?",
    "The oldest?",
    "and the average?",
    "Show the age as well",
    "No, by country instead.",
    "Back to the singers: only the young ones",
    "In how many of those is Ada?",
    "sorry, I meant by country (names please)",
    "and the fewest?",
    "Oldest singer first, please.",
    "the oldest by country",
    "top 3 by age",
)
STANDING = (
    "How many concerts are there?",
    "How many singers are there for each country?",
    "Show the names of singers and their ages.",
    "Which singers have more than one concert?",
    "For each singer, how many concerts do they have?",
    "Sort the singers by age.",
    "What is the average age of the singers?",
    "List the titles of concerts in 2015 and the name of the singer who gave each of them.",
)
UNSURE = (
    "And how many concerts are there?",
    "concerts in 2015",
    "What is the highest age?",
    "Who comes from France?",
    "Revenue by month",
    "Top 5 countries by revenue",
)


def _leaning(question: str, database: Database) -> str:
    named = mentions(database.schema(), question)
    return relation_of(question, named, FIRST, database.dialect).leaning


@pytest.mark.parametrize("question", LEANING)
def test_what_leans(question: str, database: Database) -> None:
    assert _leaning(question, database) == "leans"


@pytest.mark.parametrize("question", STANDING)
def test_what_stands_by_itself(question: str, database: Database) -> None:
    assert _leaning(question, database) == "stands"


@pytest.mark.parametrize("question", UNSURE)
def test_what_is_read_both_ways(question: str, database: Database) -> None:
    assert _leaning(question, database) == "unsure"


def test_a_first_question_leans_on_nothing(database: Database) -> None:
    named = mentions(database.schema(), "And in France?")
    assert relation_of("And in France?", named, [], database.dialect).readings == ("standalone",)


def test_the_turn_that_is_continued_is_the_newest_about_the_table_that_is_named(database: Database) -> None:
    turns = [*FIRST, Turn(question="Concerts?", sql="SELECT title FROM concert")]
    for question, turn in (("Back to the singers: the oldest", 0), ("only those concerts in 2015", 1), ("by year", 1)):
        named = mentions(database.schema(), question)
        assert relation_of(question, named, turns, database.dialect).turn == turn


@pytest.mark.parametrize(
    ("question", "rest"),
    [
        ("Start over.", ""),
        ("Forget that. How many singers are there?", "How many singers are there?"),
        ("New topic, forget the singers: how many concerts?", "how many concerts?"),
        ("let's start over", ""),
        ("How many singers start over again?", None),
        ("Newest singers", None),
    ],
)
def test_starting_over(question: str, rest: str | None) -> None:
    assert without_reset(question) == rest


@pytest.mark.parametrize(
    ("question", "entity", "whole"),
    [
        ("How many concerts does that singer have?", "Ada", "How many concerts does Ada have?"),
        ("What is her age?", "Ada", "What is Ada's age?"),
        ("And concerts?", None, "How many concerts are from Spain?"),
        ("Who is from there?", "Spain", "Who is from Spain?"),
        ("How many are there?", "Ada", None),
        ("Make it the top five.", "Ada", None),
        ("Please sort them by age", "Ada", None),
        ("How many concerts do they have?", None, None),
        ("Which singers are that old?", "Ada", None),
    ],
)
def test_a_follow_up_written_out(question: str, entity: str | None, whole: str | None, database: Database) -> None:
    turn = Turn(question=FIRST[0]["question"], sql=FIRST[0]["sql"], entity=entity)
    named = [mentions(database.schema(), text) for text in (question, turn["question"])]
    assert resolve(question, turn, *named, database.dialect) == whole


@pytest.mark.skipif(not DATA.exists(), reason="no Spider data")
def test_hardly_a_question_of_spider_is_taken_for_a_follow_up() -> None:
    """They are all first questions; 2 of 972 lean today, both through a pronoun."""
    leaning = asked = 0
    schemas: dict[str, Database] = {}
    for entry in json.loads((DATA / "spider/dev.json").read_text())[::3]:
        file = DATA / "spider/database" / entry["db_id"] / f"{entry['db_id']}.sqlite"
        if file.exists():
            database = schemas.setdefault(entry["db_id"], open_database(file, engine="sqlite"))
            asked, leaning = asked + 1, leaning + (_leaning(entry["question"], database) == "leans")
    for database in schemas.values():
        database.close()
    assert asked > 300 and leaning / asked < 0.01


SHOP = Schema(
    (Table("albums", (Column("title", "TEXT"),)), Table("artists", (Column("name", "TEXT"),))),
    "sqlite",
)
DATAOfSmallTalk = Path(__file__).resolve().parents[4] / "shared" / "data"


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


COUNTED, SHOWN = 'SELECT COUNT(*) FROM "order_lines"', 'SELECT * FROM "order_lines"'


@pytest.mark.parametrize(
    ("asked", "sql"),
    [
        ("How many rows are there?", COUNTED), ("count the records", COUNTED), ("How many entries does it have?", COUNTED),
        ("What is the number of rows of the Order Lines table?", COUNTED), ("Show me the data", SHOWN),
        ("Give me all rows.", SHOWN), ("List everything", SHOWN), ("show the whole table", SHOWN),
        ("Show me the data in order lines", SHOWN), ("How many order lines are there?", None), ("Show me 5 rows", None),
        ("How many rows have no price?", None), ("How many tables are there?", None), ("Show the data of 2024", None),
        ("Show the table of prices", None), ("How many rows of customers are there?", None), ("How many are there?", None),
    ],
)  # fmt: skip
def test_the_rows_of_the_only_table(asked: str, sql: str | None) -> None:
    lines = Schema((Table("order_lines", (Column("price", "REAL"),)),), "sqlite")
    assert of_all_rows(asked, lines) == sql


def test_what_is_called_a_record_is_no_row() -> None:
    shop = Schema((Table("stores", (Column("records", "INTEGER"),)),), "sqlite")
    assert of_all_rows("How many records are there?", shop) is None


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
        DATAOfSmallTalk / "spider" / "train_spider.json",
        DATAOfSmallTalk / "spider_syn" / "train_spider.json",
        DATAOfSmallTalk / "bird" / "train" / "train.json",
    ]
    asked = [entry for file in files if file.is_file() for entry in json.loads(file.read_text(encoding="utf-8"))]
    if not asked:
        pytest.skip("Spider data is not at ../shared/data")
    texts = {str(value) for entry in asked for key, value in entry.items() if "uestion" in key}
    assert len(texts) > 10_000
    assert [text for text in texts if small_talk(text, SHOP) or of_all_rows(text, SHOP) is not None] == []
