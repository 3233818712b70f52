"""A schema in other orders holds the same tables, columns and keys, always alike for a number."""

from agent.prompts.slots import in_order
from tools.schema import Column, ForeignKey, Schema, Table

COLUMNS = tuple(Column(name, "text", primary_key=name == "id") for name in ("id", "a", "b", "owner", "c", "d", "e"))
TABLES = tuple(Table(name, COLUMNS, (ForeignKey(("owner",), "t0", ("id",)),)) for name in ("t0", "t1", "t2", "t3"))
SCHEMA = Schema(TABLES, "sqlite")


def test_the_first_is_the_schemas_own_and_the_second_has_the_tables_reversed() -> None:
    assert in_order(SCHEMA, 0) is SCHEMA
    assert in_order(SCHEMA, 1).tables == TABLES[::-1]


def test_shuffled_ones_hold_the_same_and_keys_keep_their_places() -> None:
    found = [in_order(SCHEMA, number) for number in range(2, 8)]
    for schema in found:
        assert sorted(table.name for table in schema.tables) == ["t0", "t1", "t2", "t3"]
        for table in schema.tables:
            assert set(table.columns) == set(COLUMNS)
            assert [table.columns.index(COLUMNS[place]) for place in (0, 3)] == [0, 3]
    assert len(set(found)) == len(found), "they differ"
    assert found == [in_order(SCHEMA, number) for number in range(2, 8)], "cached prompts are found again"


def test_a_table_of_keys_and_an_empty_schema_stay() -> None:
    keys = Table("link", (COLUMNS[0], COLUMNS[3]), TABLES[0].foreign_keys)
    assert in_order(Schema((keys,), "sqlite"), 5).tables == (keys,)
    assert in_order(Schema((), "sqlite"), 5).tables == ()
