"""Bridges between a plan's tables are added, and a plan that fits keeps its bytes."""

import pytest

from agent.prompts.mend_plan import mended_plan
from tools.schema import Column, ForeignKey, Schema, Table


def _table(name: str, *columns: str, keys: dict[str, str] | None = None) -> Table:
    refers = tuple(ForeignKey((column,), table, ("id",)) for column, table in (keys or {}).items())
    made = tuple(Column(column, "INTEGER", primary_key=column == "id") for column in columns)
    return Table(name, made, refers)


SCHEMA = Schema(
    (
        _table("people", "id", "Name", "Age"),
        _table("club", "id", "Name", "Founded"),
        _table("performance", "id", "Share", "member", keys={"member": "people"}),
        _table("membership", "id", "who", "club", keys={"who": "people", "club": "club"}),
        _table("visit", "id", "when", "performance", keys={"performance": "performance"}),
    ),
    "sqlite",
)
BRIDGES = ("bridges",)
REST = " | SELECT _ FROM _"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("people: Age; club: Founded", "people: Age; club: Founded; membership"),
        ("visit: when; people", "visit: when; people; performance"),
        ("visit; club", "visit; club; performance; people; membership"),
        ("people; performance", "people; performance"),
        ("unknown; people", "unknown; people"),
    ],
)
def test_bridges_between_tables_are_added(written: str, meant: str) -> None:
    mended = mended_plan(written + REST, SCHEMA, BRIDGES)
    assert set(mended.removesuffix(REST).split("; ")) == set(meant.split("; "))
    assert mended.startswith(written)
    assert mended_plan(written + REST, SCHEMA, ()) == written + REST
    assert mended_plan(mended, SCHEMA, BRIDGES) == mended


@pytest.mark.parametrize("text", ["no plan", "people:  Age|SELECT _", 'people: "Age" | SELECT _ FROM _'])
def test_what_fits_or_cannot_be_read_stays_as_it_is_to_the_byte(text: str) -> None:
    assert mended_plan(text, SCHEMA, BRIDGES) == text
