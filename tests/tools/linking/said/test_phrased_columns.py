"""A word is a column where the sentence has a place for columns, and may be anything elsewhere.

Guards against a plan without the capacity that was asked for, and against certainty about words of everyday.
"""

import pytest

from tools.linking.match_values import ValueMatch
from tools.linking.said.phrased_columns import counted_columns, phrased_columns
from tools.schema import Column, ForeignKey, Schema, Table

HALL = Table(
    "halls",
    (
        Column("id", "INTEGER", True),
        Column("name", "TEXT"),
        Column("capacity", "INTEGER"),
        Column("height", "REAL"),
        Column("owner", "TEXT"),
        Column("seats", "INTEGER"),
        Column("year", "INTEGER"),
        Column("town_code", "TEXT"),
        Column("density", "REAL"),
    ),
    (ForeignKey(("town_code",), "towns", ("code",)),),
)
TOWN = Table("towns", (Column("code", "TEXT", True), Column("population", "INTEGER"), Column("owner", "TEXT")))
SCHEMA = Schema((HALL, TOWN), "sqlite")


@pytest.mark.parametrize(
    ("question", "columns"),
    [
        ("What is the average capacity?", {"capacity"}),
        ("Show the owner of all halls", {"owner"}),
        ("Show names and capacities", {"capacity"}),
        ("List height, capacity", {"height", "capacity"}),
        ("Which halls have height above 5?", {"height"}),
        ("Which halls are of height 5?", {"height"}),
        ("How many halls are there for each owner?", {"owner"}),
        ("Whose capacity is unknown?", {"capacity"}),
        ("Halls with the highest population density", set()),  # a density is no population
        ("Halls with a good height", set()),
        ("Show the name of each hall", set()),  # names are everywhere
        ("What is the code of each town?", set()),  # a key may be meant by joining
        ("Which town is it?", set()),  # that is a table
    ],
)
def test_what_a_phrase_names(question: str, columns: set[str]) -> None:
    assert {column for places in phrased_columns(SCHEMA, question) for _, column in places} == columns


def test_all_columns_of_the_name_may_be_meant() -> None:
    assert phrased_columns(SCHEMA, "for each owner") == (frozenset({("halls", "owner"), ("towns", "owner")}),)


def test_words_of_a_value_name_no_column() -> None:
    question = "the average capacity"
    known = ValueMatch("halls", "name", "Capacity", "capacity", 1.0)
    assert phrased_columns(SCHEMA, question)
    assert not phrased_columns(SCHEMA, question, [known])


@pytest.mark.parametrize(
    ("question", "columns"),
    [
        ("How many seats are there?", {"seats"}),
        ("What is the number of seats in Rome?", {"seats"}),
        ("How many halls are there?", set()),
        ("How many owners are there?", set()),  # words add up to nothing
        ("How many years are there?", set()),  # nor do years
        ("Which seats are there?", set()),
    ],
)
def test_what_is_counted(question: str, columns: set[str]) -> None:
    assert {column for places in counted_columns(SCHEMA, question) for _, column in places} == columns
