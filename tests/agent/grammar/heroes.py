"""A small schema of heroes, and whether the grammar over a schema takes a text."""

from agent.grammar.machine import LexState, beginning, feed
from agent.grammar.scope import Catalog
from tools.schema import Column, ForeignKey, Schema, Table

HERO = Table(
    "hero",
    (
        Column("id", "INTEGER", True),
        Column("name", "TEXT", samples=("Thor", "Hulk")),
        Column("height", "INTEGER", samples=("180", "201")),
        Column("publisher_id", "INTEGER", samples=("1", "2")),
    ),
    (ForeignKey(("publisher_id",), "publisher", ("id",)),),
)
PUBLISHER = Table("publisher", (Column("id", "INTEGER", True), Column("title", "TEXT", samples=("Shueisha",))))
POWER = Table("power", (Column("id", "INTEGER", True), Column("label", "TEXT", samples=("Flight",))))
HERO_POWER = Table(
    "hero_power",
    (Column("hero_id", "INTEGER"), Column("power_id", "INTEGER")),
    (ForeignKey(("hero_id",), "hero", ("id",)), ForeignKey(("power_id",), "power", ("id",))),
)
NOTE = Table(
    "note",
    (Column("line", "TEXT", samples=("x y",)), Column("day", "DATE"), Column("price", "TEXT", samples=("10", "2.5"))),
)
SCHEMA = Schema((HERO, PUBLISHER, POWER, HERO_POWER, NOTE), "sqlite")


def accepted(text: str, catalog: Catalog) -> bool:
    reading: LexState | None = LexState(beginning(catalog))
    for character in text.lower():
        reading = feed(reading, character) if reading else None
    end = reading.settled() if reading else None
    return end is not None and end.complete
