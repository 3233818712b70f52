"""Guards the decision whether a question leans on the conversation: a history that is not needed made second questions fail."""

import json

import pytest

from agent.follow_ups import relation_of, resolve, without_reset
from agent.state import Turn
from tests.agent.spider_gold import DATA
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.linking.link_schema import mentions

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
UNSURE = ("And how many concerts are there?", "concerts in 2015", "What is the highest age?", "Who comes from France?")


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
