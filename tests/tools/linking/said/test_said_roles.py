"""Of several keys to one table, the one whose role is said is meant; without such words none is preferred."""

import pytest

from tools.linking.said.said_roles import said_roles, unshared
from tools.schema import Column, ForeignKey, Schema, Table


def referring(name: str, target: str, *columns: str) -> Table:
    keys = tuple(ForeignKey((column,), target, ("id",)) for column in columns)
    return Table(name, tuple(Column(column, "INTEGER") for column in columns), keys)


PORT = Table("ports", (Column("id", "INTEGER", True), Column("town", "TEXT")))
PERSON = Table("persons", (Column("id", "INTEGER", True),))
SCHEMA = Schema(
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
    assert {column for _, column in said_roles(SCHEMA, question)} == roles


def test_a_single_word_is_no_role_beside_a_key_without_one() -> None:
    friends = referring("friends", "persons", "id", "friend")
    assert not said_roles(Schema((PERSON, friends), "sqlite"), "How many friends does Ann have?")
    both = referring("friends", "persons", "host", "friend")
    assert said_roles(Schema((PERSON, both), "sqlite"), "How many friends does Ann have?") == {("friends", "friend")}


def test_a_role_of_two_tables_tells_none_of_them() -> None:
    assert unshared(frozenset({("a", "host"), ("b", "host"), ("a", "guest")})) == {("a", "guest")}
