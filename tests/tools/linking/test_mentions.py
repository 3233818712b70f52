"""What a question mentions of a schema, and what only shares words with it.

Guards against a plan of beds where a bed type was asked for, and against certainty about words that mean something else.
"""

import pytest

from tools.linking.match_values import ValueMatch
from tools.linking.mentions import (
    QuestionContext,
    counted_columns,
    drop_unmeant,
    mentioned_columns,
    mentioned_roles,
    unshared,
)
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
HOTELS = Schema((ROOM, HOTEL), "sqlite")


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
    said = mentioned_columns(HOTELS, question)
    assert {column for places in said.named for _, column in places} == named
    assert {column for _, column in said.shadowed} == shadowed


def test_a_name_that_is_part_of_a_longer_one_is_not_sure() -> None:
    shown = Table("cartoons", (Column("title", "TEXT"), Column("Original_air_date", "DATE")))
    series = Table("series", (Column("Air_Date", "DATE"), Column("run_time", "INTEGER")))
    said = mentioned_columns(Schema((shown, series), "sqlite"), "Show the run time of all cartoons by their air date")
    assert said.named == (frozenset({("series", "run_time")}),)


def test_words_of_a_value_name_no_column() -> None:
    question = "Which hotel has the Bed Type Suite?"
    assert mentioned_columns(HOTELS, question).named
    suite = ValueMatch("rooms", "roomName", "Bed Type Suite", "Bed Type Suite", 1.0)
    assert not mentioned_columns(HOTELS, question, [suite]).named


def test_a_column_that_holds_a_value_is_not_shadowed() -> None:
    question = "What is the bed type of twin rooms?"
    twin = ValueMatch("rooms", "beds", "twin", "twin", 1.0)
    assert mentioned_columns(HOTELS, question).shadowed == {("rooms", "beds")}
    assert not mentioned_columns(HOTELS, question, [twin]).shadowed


def referring(name: str, target: str, *columns: str) -> Table:
    keys = tuple(ForeignKey((column,), target, ("id",)) for column in columns)
    return Table(name, tuple(Column(column, "INTEGER") for column in columns), keys)


PORT = Table("ports", (Column("id", "INTEGER", True), Column("town", "TEXT")))
PERSON = Table("persons", (Column("id", "INTEGER", True),))
PORTS = Schema(
    (
        PORT,
        PERSON,
        referring("trips", "ports", "src_port_id", "dst_port_id"),
        referring("faults", "persons", "reported_by_person_id", "closed_by_person_id"),
        referring("votes", "persons", "person_id", "vice_chair_vote", "chair_vote"),
        referring("tickets", "ports", "port_id"),
    ),
    "sqlite",
)


@pytest.mark.parametrize(
    ("question", "roles"),
    [
        ("How many trips have a destination in Rome?", {"dst_port_id"}),
        ("From which source do most trips start?", {"src_port_id"}),
        ("Which faults were reported by Ann?", {"reported_by_person_id"}),
        ("Reported by Ann and closed by Bob", {"reported_by_person_id", "closed_by_person_id"}),
        ("Who has chair votes?", {"chair_vote"}),
        ("Who has vice chair votes?", {"vice_chair_vote"}),  # not the chair's, whose words stand inside
        ("How many trips are there?", set()),
        ("Which ports have tickets?", set()),  # no other key leads there
        ("Which faults did Ann report?", set()),  # perhaps what she wrote
    ],
)
def test_the_role_that_is_said(question: str, roles: set[str]) -> None:
    assert {column for _, column in mentioned_roles(PORTS, question)} == roles


def test_a_single_word_is_no_role_beside_a_key_without_one() -> None:
    friends = referring("friends", "persons", "id", "friend")
    assert not mentioned_roles(Schema((PERSON, friends), "sqlite"), "How many friends does Ann have?")
    both = referring("friends", "persons", "host", "friend")
    assert mentioned_roles(Schema((PERSON, both), "sqlite"), "How many friends does Ann have?") == {
        ("friends", "friend")
    }


def test_a_role_of_two_tables_tells_none_of_them() -> None:
    assert unshared(frozenset({("a", "host"), ("b", "host"), ("a", "guest")})) == {("a", "guest")}


LEVELS = Table("catalog_levels", (Column("level_name", "TEXT"), Column("product_count", "INTEGER")))
PEOPLE = Table("customers", (Column("good_or_bad", "TEXT"), Column("reported_on", "DATE")))
LEVELS_SCHEMA = Schema((LEVELS, PEOPLE), "sqlite")


@pytest.mark.parametrize(
    ("column", "phrase", "score", "kept"),
    [
        ("level_name", "products", 0.82, False),
        ("level_name", "reported", 0.85, False),
        ("level_name", "Product", 1.0, True),  # in quotes or capitals
        ("good_or_bad", "good", 0.85, True),  # the column is about that word
        ("level_name", "modern", 0.8, True),  # no word of the schema
        ("level_name", "product count", 0.85, True),  # several words
        ("level_name", "women", 0.9, True),  # a meaning of its own
    ],
)
def test_what_is_kept(column: str, phrase: str, score: float, kept: bool) -> None:
    match = ValueMatch("catalog_levels" if column == "level_name" else "customers", column, "x", phrase, score)
    context = QuestionContext(f"Show all the {phrase}")
    assert drop_unmeant([match], LEVELS_SCHEMA, context) == (None if kept else ())


def test_a_kind_may_be_a_value() -> None:
    match = ValueMatch("catalog_levels", "level_name", "Product", "product", 0.85)
    assert drop_unmeant([match], LEVELS_SCHEMA, QuestionContext("What is described as product?")) is None
    assert drop_unmeant([match], LEVELS_SCHEMA, QuestionContext("What product is described?")) == ()


HALL = Table("halls", (Column("seats", "INTEGER"), Column("owner", "TEXT"), Column("year", "INTEGER")))
HALLS = Schema((HALL,), "sqlite")


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
    assert {column for places in counted_columns(HALLS, question) for _, column in places} == columns
