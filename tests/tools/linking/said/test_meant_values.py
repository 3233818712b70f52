"""A plain word of the schema names no value; a marked one, or one of the column's own name, does."""

import pytest

from tools.linking.match_values import ValueMatch
from tools.linking.said.meant_values import meant_values
from tools.schema import Column, Schema, Table

LEVELS = Table("catalog_levels", (Column("level_name", "TEXT"), Column("product_count", "INTEGER")))
PEOPLE = Table("customers", (Column("good_or_bad", "TEXT"), Column("reported_on", "DATE")))
SCHEMA = Schema((LEVELS, PEOPLE), "sqlite")


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
    assert meant_values([match], SCHEMA, f"Show all the {phrase}") == ((match,) if kept else ())


def test_a_kind_may_be_a_value() -> None:
    match = ValueMatch("catalog_levels", "level_name", "Product", "product", 0.85)
    assert meant_values([match], SCHEMA, "What is described as product?") == (match,)
    assert meant_values([match], SCHEMA, "What product is described?") == ()
