"""What a question demands of plans and joins: columns that it names, roles of keys that it says; and words have no order."""

import pytest

from agent.grammar.rules.plan_rules import plan_catalog
from agent.grammar.scope.facts import facts_of
from agent.grammar.scope.said import Said
from agent.grammar.scope.scope import catalog_of
from tests.agent.grammar.heroes import SCHEMA, accepted
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
