"""What a question's words demand of plans and joins: columns that it names, roles of keys that it says, and no amounts."""

import pytest

from agent.grammar.facts import facts_of
from agent.grammar.rules import plan_catalog
from agent.grammar.scope import catalog_of
from tests.agent.grammar.heroes import accepted
from tools.linking.match_values import ValueMatch
from tools.linking.mentions import QuestionContext
from tools.schema import Column, ForeignKey, Schema, Table

TRIPS = Schema(
    (
        Table("port", (Column("id", "INTEGER", True), Column("town", "TEXT"))),
        Table(
            "trip",
            (Column("src_id", "INTEGER"), Column("dst_id", "INTEGER")),
            (ForeignKey(("src_id",), "port", ("id",)), ForeignKey(("dst_id",), "port", ("id",))),
        ),
    ),
    "sqlite",
)


@pytest.mark.parametrize(
    ("plan", "without", "good"),
    [
        ("room: decor | SELECT _, COUNT(*) FROM _ GROUP BY _", (), False),  # the bed type is forgotten
        ("room: beds, bed_type | SELECT _, COUNT(*) FROM _ GROUP BY _", (), False),  # no bed is left to be counted
        ("room: bed_type | SELECT _, COUNT(*) FROM _ GROUP BY _", (), True),
        ("room: decor, bed_type | SELECT _, COUNT(*) FROM _ GROUP BY _", (), True),
        ("room: decor | SELECT _, COUNT(*) FROM _ GROUP BY _", ("named",), True),
        ("room: beds, bed_type | SELECT _, COUNT(*) FROM _ GROUP BY _", ("named",), True),
    ],
)
def test_a_plan_names_what_the_question_names(plan: str, without: tuple[str, ...], good: bool) -> None:
    room = Table("room", (Column("beds", "INTEGER"), Column("bed_type", "TEXT"), Column("decor", "TEXT")))
    schema = Schema((room,), "sqlite")
    context = QuestionContext("How many rooms are there for each bed type?", without=without)
    assert accepted(plan, plan_catalog(schema, facts_of(schema, context))) is good


@pytest.mark.parametrize(
    ("plan", "without", "good"),
    [
        ("guest: age | SELECT COUNT(*) FROM _", (), False),  # the room has the beds
        ("room: decor | SELECT COUNT(*) FROM _", (), True),  # how many of them is the SQL's matter
        ("guest: age | SELECT COUNT(*) FROM _", ("counted",), True),
    ],
)
def test_a_plan_has_the_table_of_what_is_counted(plan: str, without: tuple[str, ...], good: bool) -> None:
    room = Table("room", (Column("beds", "INTEGER"), Column("decor", "TEXT")))
    schema = Schema((room, Table("guest", (Column("age", "INTEGER"),))), "sqlite")
    context = QuestionContext("How many beds are there?", without=without)
    assert accepted(plan, plan_catalog(schema, facts_of(schema, context))) is good


@pytest.mark.parametrize(
    ("text", "without", "good"),
    [
        ("SELECT COUNT(*) FROM trip JOIN port ON trip.dst_id = port.id", (), True),
        ("SELECT COUNT(*) FROM trip JOIN port ON port.id = trip.dst_id", (), True),
        ("SELECT COUNT(*) FROM port JOIN trip ON trip.src_id = port.id", (), False),  # the source's
        ("SELECT COUNT(*) FROM port JOIN trip ON trip.src_id = port.id", ("roles",), True),
    ],
)
def test_joins_follow_the_role_that_is_said(text: str, without: tuple[str, ...], good: bool) -> None:
    context = QuestionContext("How many trips have a destination in Rome?", without=without)
    assert accepted(text, catalog_of(TRIPS, "sqlite", facts_of(TRIPS, context))) is good


def test_a_plan_has_the_table_of_a_role() -> None:
    context = QuestionContext("How many trips have a destination in Rome?")
    catalog = plan_catalog(TRIPS, facts_of(TRIPS, context))
    assert accepted("port: town; trip | SELECT COUNT(*) FROM _, _ WHERE _ = _", catalog)
    assert not accepted("port: town | SELECT COUNT(*) FROM _ WHERE _ = _", catalog)


GENRE = Table("genres", (Column("id", "INTEGER", True), Column("family", "TEXT", samples=("rock",))))
ALBUM = Table(
    "albums",
    (
        Column("id", "INTEGER", True),
        Column("genre_id", "INTEGER"),
        Column("title", "TEXT", samples=("Tide",)),
        Column("label", "TEXT", samples=("Brass Key",)),
        Column("list_price", "REAL", samples=("9.9",)),
        Column("released", "DATE", samples=("2001-01-15",)),
    ),
    (ForeignKey(("genre_id",), "genres", ("id",)),),
)
TRACK = Table(
    "tracks",
    (Column("album_id", "INTEGER"), Column("title", "TEXT")),
    (ForeignKey(("album_id",), "albums", ("id",)),),
)
PLAY = Table(
    "plays",
    (Column("track_title", "TEXT"), Column("family", "TEXT")),
    (ForeignKey(("track_title",), "tracks", ("title",)),),
)
RECORDS = Schema((GENRE, ALBUM, TRACK, PLAY), "duckdb")


def test_a_plan_skips_no_table_but_for_the_other_half_of_a_set() -> None:
    """Families that both have: joins lead from one table to the other by way of two more, and none is needed."""
    rock = ValueMatch("plays", "family", "Rock", "Rock", 1.0)
    catalog = plan_catalog(
        RECORDS, facts_of(RECORDS, QuestionContext("Which families are of plays of 'Rock'?", (rock,)))
    )
    assert accepted("genres: family; plays: family | SELECT _ FROM _ INTERSECT SELECT _ FROM _", catalog)
    assert not accepted("genres: family | SELECT _ FROM _", catalog)
    assert not accepted("genres: id; plays: family | SELECT _ FROM _", catalog)
    assert accepted("genres: id; albums; tracks; plays: family | SELECT _ FROM _", catalog)


@pytest.mark.parametrize("sql", ["SELECT SUM(released) FROM albums", "SELECT AVG(albums.released) FROM albums"])
def test_dates_are_never_added_up(sql: str) -> None:
    for context in (QuestionContext("The total?"), QuestionContext("The total?", without=("keys",))):
        assert not accepted(sql, catalog_of(RECORDS, "duckdb", facts_of(RECORDS, context)))
    assert accepted(sql.replace("released", "list_price"), catalog_of(RECORDS, "duckdb", facts_of(RECORDS, context)))
    assert accepted(
        sql.replace("SUM", "MAX").replace("AVG", "MIN"), catalog_of(RECORDS, "duckdb", facts_of(RECORDS, context))
    )


def test_a_table_without_amounts_does_not_begin_a_sum() -> None:
    """Else the sum could only be closed over words or dates."""
    catalog = catalog_of(RECORDS, "duckdb", facts_of(RECORDS, QuestionContext("The total?")))
    assert not accepted("SELECT SUM(genres.family) FROM genres JOIN albums ON albums.genre_id = genres.id", catalog)
    assert accepted("SELECT SUM(albums.list_price) FROM genres JOIN albums ON albums.genre_id = genres.id", catalog)


@pytest.mark.parametrize(
    ("plan", "good"),
    [
        ("albums: id, list_price | SELECT _ FROM _ WHERE _ > (SELECT AVG(_) FROM _)", False),
        ("albums: id, list_price | SELECT _ FROM _ WHERE _ IN (SELECT _ FROM _)", True),
    ],
)
def test_no_identifier_is_compared_with_an_average(plan: str, good: bool) -> None:
    context = QuestionContext("Which albums are cheaper than the average?", plan=plan)
    catalog = catalog_of(RECORDS, "duckdb", facts_of(RECORDS, context))
    assert accepted("SELECT title FROM albums WHERE id = (SELECT AVG(list_price) FROM albums)", catalog) is good
    assert accepted("SELECT title FROM albums WHERE list_price = (SELECT AVG(list_price) FROM albums)", catalog)


def test_words_about_rows_are_no_literal() -> None:
    """Guards against `label = 'albums that cost'`."""
    catalog = catalog_of(
        RECORDS, "duckdb", facts_of(RECORDS, QuestionContext("titles of albums that cost little on brass key"))
    )
    assert not accepted("SELECT title FROM albums WHERE label = 'albums that cost'", catalog)
    assert accepted("SELECT title FROM albums WHERE label = 'brass key'", catalog)
