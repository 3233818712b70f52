"""Groups fix what is shown beside aggregates, and stay where they do."""

import pytest

from tools.repair.shape.set_groups import set_groups
from tools.schema import Column, ForeignKey, Schema, Table

STORE = Table("store", (Column("id", "INTEGER", primary_key=True), Column("name", "TEXT"), Column("city", "TEXT")))
CLERK = Table(
    "clerk",
    (Column("id", "INTEGER", primary_key=True), Column("boss", "INTEGER"), Column("store", "INTEGER")),
    (ForeignKey(("store",), "store", ("id",)),),
)
SALE = Table("sale", (Column("clerk", "INTEGER"), Column("day", "DATE")), (ForeignKey(("clerk",), "clerk", ("id",)),))
SCHEMA = Schema((STORE, CLERK, SALE), "sqlite")
WITHOUT_KEYS = Schema(
    (Table("store", (Column("id", "BIGINT"), Column("name", "VARCHAR"))), Table("clerk", CLERK.columns[1:])), "duckdb"
)
JOINED = "FROM clerk JOIN store ON clerk.store = store.id"


def test_a_name_is_grouped_by_its_own_table() -> None:
    fixed = set_groups(f"SELECT store.name {JOINED} GROUP BY clerk.boss ORDER BY COUNT(*) DESC LIMIT 1", SCHEMA)
    assert fixed == f"SELECT store.name {JOINED} GROUP BY store.id ORDER BY COUNT(*) DESC LIMIT 1"


def test_without_a_key_it_is_grouped_by_what_joins_it() -> None:
    fixed = set_groups(f"SELECT ANY_VALUE(store.name), COUNT(*) {JOINED} GROUP BY clerk.boss", WITHOUT_KEYS)
    assert fixed == f"SELECT ANY_VALUE(store.name), COUNT(*) {JOINED} GROUP BY store.id"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT store.name, COUNT(*) {JOINED} GROUP BY clerk.store",
        f"SELECT store.name, COUNT(*) {JOINED} GROUP BY store.city",
        f"SELECT clerk.boss, store.name, COUNT(*) {JOINED} GROUP BY clerk.boss",
        f"SELECT store.name, COUNT(*) {JOINED} GROUP BY clerk.id",
        f"SELECT COUNT(*) {JOINED} GROUP BY clerk.boss",
        "SELECT store.name, COUNT(*) FROM sale JOIN clerk ON sale.clerk = clerk.id JOIN store ON clerk.store = store.id "
        "GROUP BY sale.clerk",
        "SELECT store.name, COUNT(*) FROM clerk, store WHERE clerk.store = store.id GROUP BY clerk.store",
        "SELECT name FROM store WHERE id IN (SELECT store FROM clerk GROUP BY store.city)",
        "SELECT store.name FROM nowhere",
        "no query",
    ],
)
def test_groups_stay(sql: str) -> None:
    """Where a key is of the same table, is shown itself, or leads to one row of the table, along foreign keys too."""
    assert set_groups(sql, SCHEMA) is None
