"""What a question demands of plans and joins: columns that it names, roles of keys that it says; and words have no order."""

import pytest

from agent.grammar.rules.plan_rules import plan_catalog
from agent.grammar.scope.facts import facts_of
from agent.grammar.scope.said import Said
from agent.grammar.scope.scope import catalog_of
from tests.agent.grammar.heroes import SCHEMA, accepted
from tools.linking.match_values import ValueMatch
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
    ("plan", "named", "good"),
    [
        ("room: decor | SELECT _, COUNT(*) FROM _ GROUP BY _", True, False),  # the bed type is forgotten
        ("room: beds, bed_type | SELECT _, COUNT(*) FROM _ GROUP BY _", True, False),  # no bed is left to be counted
        ("room: bed_type | SELECT _, COUNT(*) FROM _ GROUP BY _", True, True),
        ("room: decor, bed_type | SELECT _, COUNT(*) FROM _ GROUP BY _", True, True),
        ("room: decor | SELECT _, COUNT(*) FROM _ GROUP BY _", False, True),
        ("room: beds, bed_type | SELECT _, COUNT(*) FROM _ GROUP BY _", False, True),
    ],
)
def test_a_plan_names_what_the_question_names(plan: str, named: bool, good: bool) -> None:
    room = Table("room", (Column("beds", "INTEGER"), Column("bed_type", "TEXT"), Column("decor", "TEXT")))
    schema = Schema((room,), "sqlite")
    said = Said("How many rooms are there for each bed type?", named=named)
    assert accepted(plan, plan_catalog(schema, facts_of(schema, said))) is good


@pytest.mark.parametrize(
    ("plan", "rules", "good"),
    [
        ("room: decor | SELECT _ FROM _", {"phrased": True}, False),  # the average price is forgotten
        ("room: price | SELECT AVG(_) FROM _", {"phrased": True}, True),
        ("room: decor | SELECT _ FROM _", {}, True),
        ("guest: age | SELECT COUNT(*) FROM _", {"counted": True}, False),  # the room has the beds
        ("room: decor | SELECT COUNT(*) FROM _", {"counted": True}, True),  # how many of them is the SQL's matter
        ("guest: age | SELECT COUNT(*) FROM _", {}, True),
    ],
)
def test_a_plan_has_what_a_phrase_is_about(plan: str, rules: dict[str, bool], good: bool) -> None:
    room = Table("room", (Column("beds", "INTEGER"), Column("price", "REAL"), Column("decor", "TEXT")))
    schema = Schema((room, Table("guest", (Column("age", "INTEGER"),))), "sqlite")
    said = Said("How many beds are there, and what is the average price?", **rules)  # type: ignore[arg-type]
    assert accepted(plan, plan_catalog(schema, facts_of(schema, said))) is good


@pytest.mark.parametrize(
    ("text", "roles", "good"),
    [
        ("SELECT COUNT(*) FROM trip JOIN port ON trip.dst_id = port.id", True, True),
        ("SELECT COUNT(*) FROM trip JOIN port ON port.id = trip.dst_id", True, True),
        ("SELECT COUNT(*) FROM port JOIN trip ON trip.src_id = port.id", True, False),  # the source's
        ("SELECT COUNT(*) FROM port JOIN trip ON trip.src_id = port.id", False, True),
    ],
)
def test_joins_follow_the_role_that_is_said(text: str, roles: bool, good: bool) -> None:
    said = Said("How many trips have a destination in Rome?", roles=roles)
    assert accepted(text, catalog_of(TRIPS, "sqlite", facts_of(TRIPS, said))) is good


def test_a_plan_has_the_table_of_a_role() -> None:
    said = Said("How many trips have a destination in Rome?", roles=True)
    catalog = plan_catalog(TRIPS, facts_of(TRIPS, said))
    assert accepted("port: town; trip | SELECT COUNT(*) FROM _, _ WHERE _ = _", catalog)
    assert not accepted("port: town | SELECT COUNT(*) FROM _ WHERE _ = _", catalog)


@pytest.mark.parametrize(
    ("text", "ordered", "good"),
    [
        ("SELECT name FROM hero WHERE name > 'Thor'", True, False),
        ("SELECT name FROM hero WHERE name BETWEEN 'Hulk' AND 'Thor'", True, False),
        ("SELECT name FROM hero WHERE height > 190", True, True),
        ("SELECT name FROM hero WHERE name > 'Thor'", False, True),
    ],
)
def test_words_have_no_order(text: str, ordered: bool, good: bool) -> None:
    facts = facts_of(SCHEMA, Said("Heroes over 190", ordered=ordered))
    assert accepted(text, catalog_of(SCHEMA, "sqlite", facts)) is good


@pytest.mark.parametrize(
    ("sketch", "good"),
    [("WHERE _ > _", False), ("WHERE _ BETWEEN _ AND _", False), ("WHERE _ > _ AND _ = _", True), ("", True)],
)
def test_where_a_plan_only_measures_no_words_are_tested(sketch: str, good: bool) -> None:
    said = Said("Heroes over 190", ordered=True, plan=f"hero: name, height | SELECT _ FROM _ {sketch}")
    catalog = catalog_of(SCHEMA, "sqlite", facts_of(SCHEMA, said))
    assert accepted("SELECT name FROM hero WHERE name = 'Thor'", catalog) is good
    assert accepted("SELECT name FROM hero WHERE height > 190", catalog)


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


@pytest.mark.parametrize(
    ("rule", "question", "good", "bad"),
    [
        ("implied", "The cheapest albums?", "albums: list_price | SELECT _ FROM _", "albums: label | SELECT _ FROM _"),
        ("absent", "Albums without a label", "albums: label | SELECT _ FROM _", "albums: title | SELECT _ FROM _"),
        ("tables", "Number of albums per family", "genres; albums | SELECT _ FROM _", "genres | SELECT _ FROM _"),
        ("worded", "Who is on brass key?", "albums: label | SELECT _ FROM _", "albums: title | SELECT _ FROM _"),
        ("gaps", "Plays by family", "genres; albums; tracks; plays | SELECT _ FROM _", "genres; plays | SELECT _ FROM _"),
    ],
)  # fmt: skip
def test_each_rule_demands_what_it_is_for(rule: str, question: str, good: str, bad: str) -> None:
    found = (ValueMatch("albums", "label", "Brass Key", "brass key", 1.0),)
    for rules, expected in (({rule: True}, False), ({}, True)):
        catalog = plan_catalog(RECORDS, facts_of(RECORDS, Said(question, found, **rules)))  # type: ignore[arg-type]
        assert accepted(good, catalog)
        assert accepted(bad, catalog) is expected


def test_the_other_half_of_a_set_need_not_join() -> None:
    """Families that both have: no key leads from one table to the other, and none is needed."""
    said = Said("Which families have both genres and plays?", tables=True, gaps=True)
    catalog = plan_catalog(RECORDS, facts_of(RECORDS, said))
    assert accepted("genres: family; plays: family | SELECT _ FROM _ INTERSECT SELECT _ FROM _", catalog)
    assert not accepted("genres: family | SELECT _ FROM _", catalog)
    assert not accepted("genres: id; plays: family | SELECT _ FROM _", catalog)


@pytest.mark.parametrize("sql", ["SELECT SUM(released) FROM albums", "SELECT AVG(albums.released) FROM albums"])
def test_dates_are_never_added_up(sql: str) -> None:
    for said in (Said("The total?"), Said("The total?", no_amounts=True)):
        assert not accepted(sql, catalog_of(RECORDS, "duckdb", facts_of(RECORDS, said)))
    assert accepted(sql.replace("released", "list_price"), catalog_of(RECORDS, "duckdb", facts_of(RECORDS, said)))
    assert accepted(
        sql.replace("SUM", "MAX").replace("AVG", "MIN"), catalog_of(RECORDS, "duckdb", facts_of(RECORDS, said))
    )


def test_a_table_without_amounts_does_not_begin_a_sum() -> None:
    """Else the sum could only be closed over words or dates."""
    catalog = catalog_of(RECORDS, "duckdb", facts_of(RECORDS, Said("The total?", no_amounts=True)))
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
    said = Said("Which albums are cheaper than the average?", no_amounts=True, plan=plan)
    catalog = catalog_of(RECORDS, "duckdb", facts_of(RECORDS, said))
    assert accepted("SELECT title FROM albums WHERE id = (SELECT AVG(list_price) FROM albums)", catalog) is good
    assert accepted("SELECT title FROM albums WHERE list_price = (SELECT AVG(list_price) FROM albums)", catalog)


def test_words_about_rows_are_no_literal() -> None:
    """Guards against `label = 'albums that cost'`."""
    catalog = catalog_of(RECORDS, "duckdb", facts_of(RECORDS, Said("titles of albums that cost little on brass key")))
    assert not accepted("SELECT title FROM albums WHERE label = 'albums that cost'", catalog)
    assert accepted("SELECT title FROM albums WHERE label = 'brass key'", catalog)


@pytest.mark.parametrize(
    ("question", "skeleton", "rules", "good"),
    [
        ("Which rooms do not have beds?", "SELECT _ FROM _ WHERE _ <> _", {"negated": True}, True),
        ("Which rooms have beds?", "SELECT _ FROM _ WHERE _ != _", {"negated": True}, False),
        ("Which rooms have beds?", "SELECT _ FROM _ WHERE _ NOT IN (SELECT _ FROM _)", {"negated": True}, False),
        ("Which rooms have beds?", "SELECT _ FROM _ WHERE _ != _", {"having": True}, True),
        ("Which decors have at least two rooms?", "SELECT _ FROM _ GROUP BY _", {"having": True}, False),
        ("Which decors have at least two rooms?", "SELECT _ FROM _ GROUP BY _", {"negated": True}, True),
        (
            "Which decors have at least two rooms?",
            "SELECT _ FROM _ GROUP BY _ HAVING COUNT(*) >= _",
            {"having": True},
            True,
        ),
    ],
)
def test_a_skeleton_says_what_the_question_says(
    question: str, skeleton: str, rules: dict[str, bool], good: bool
) -> None:
    schema = Schema((Table("room", (Column("beds", "INTEGER"), Column("decor", "TEXT"))),), "sqlite")
    said = Said(question, **rules)  # type: ignore[arg-type]
    assert accepted(f"room: decor | {skeleton}", plan_catalog(schema, facts_of(schema, said))) is good


def test_an_earlier_question_leaves_negations_open() -> None:
    schema = Schema((Table("room", (Column("decor", "TEXT"),)),), "sqlite")
    said = Said("And those with beds?", around=("Which rooms are not old?",), negated=True)
    assert accepted("room: decor | SELECT _ FROM _ WHERE _ <> _", plan_catalog(schema, facts_of(schema, said)))
