"""A column whose name is said in full is surely meant, and what only shares words with it is not.

Guards against a plan of beds where a bed type was asked for, and against certainty about words that mean something else.
"""

import pytest

from tools.linking.match_values import ValueMatch
from tools.linking.said.said_columns import said_columns
from tools.schema import Column, ForeignKey, Schema, Table

ROOM = Table(
    "rooms",
    (
        Column("RoomId", "TEXT", True),
        Column("roomName", "TEXT"),
        Column("beds", "INTEGER"),
        Column("bedType", "TEXT"),
        Column("price_in_euros", "REAL"),
        Column("price_in_pounds", "REAL"),
        Column("decor", "TEXT"),
        Column("hotel_id", "INTEGER"),
    ),
    (ForeignKey(("hotel_id",), "hotels", ("hotel_id",)),),
)
HOTEL = Table("hotels", (Column("hotel_id", "INTEGER", True), Column("name", "TEXT"), Column("opened_on", "DATE")))
SCHEMA = Schema((ROOM, HOTEL), "sqlite")


@pytest.mark.parametrize(
    ("question", "named", "shadowed"),
    [
        ("How many rooms are there for each bed type?", {"bedtype"}, {"beds"}),
        ("How many rooms are there for each bed type and beds?", {"bedtype"}, set()),  # two names
        ("What is the average price (in Euro)?", {"price_in_euros"}, {"price_in_pounds"}),
        ("Show prices in euros and in pounds", {"price_in_euros"}, set()),
        ("What types of beds are there?", set(), set()),  # in another order it may be said of anything
        ("Which decors are there?", set(), set()),  # a word alone may be said of anything
        ("What is the name of each hotel?", set(), set()),  # names are everywhere
        ("Show the room name and the hotel id", {"roomname"}, set()),  # joining may mean a key
        ("Which hotels opened in 2020?", set(), set()),  # a verb alone
    ],
)
def test_what_is_said_in_full(question: str, named: set[str], shadowed: set[str]) -> None:
    said = said_columns(SCHEMA, question)
    assert {column for places in said.named for _, column in places} == named
    assert {column for _, column in said.shadowed} == shadowed


def test_a_name_that_is_part_of_a_longer_one_is_not_sure() -> None:
    shown = Table("cartoons", (Column("title", "TEXT"), Column("Original_air_date", "DATE")))
    series = Table("series", (Column("Air_Date", "DATE"), Column("run_time", "INTEGER")))
    said = said_columns(Schema((shown, series), "sqlite"), "Show the run time of all cartoons by their air date")
    assert said.named == (frozenset({("series", "run_time")}),)


def test_words_of_a_value_name_no_column() -> None:
    question = "Which hotel has the Bed Type Suite?"
    assert said_columns(SCHEMA, question).named
    suite = ValueMatch("rooms", "roomName", "Bed Type Suite", "Bed Type Suite", 1.0)
    assert not said_columns(SCHEMA, question, [suite]).named


def test_a_column_that_holds_a_value_is_not_shadowed() -> None:
    question = "What is the bed type of twin rooms?"
    twin = ValueMatch("rooms", "beds", "twin", "twin", 1.0)
    assert said_columns(SCHEMA, question).shadowed == {("rooms", "beds")}
    assert not said_columns(SCHEMA, question, [twin]).shadowed
