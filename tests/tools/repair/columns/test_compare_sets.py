"""Both sides of EXCEPT name the same things, where the second's tables lead to the first's."""

import pytest

from tools.repair.columns.compare_sets import compare_sets
from tools.schema import Column, ForeignKey, Schema, Table


def table(name: str, *keys: str) -> Table:
    """With a name, a country, and keys to other tables."""
    columns = (Column("id", "INTEGER", primary_key=True), Column("name", "TEXT"), Column("country", "TEXT"))
    foreign = tuple(ForeignKey((f"{key}_id",), key, ("id",)) for key in keys)
    return Table(name, columns + tuple(Column(f"{key}_id", "INTEGER") for key in keys), foreign)


SCHEMA = Schema((table("artist"), table("store"), table("concert", "artist", "store"), table("film")), "sqlite")
STORES = "FROM concert JOIN store ON concert.store_id = store.id"


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        (
            f"SELECT name FROM artist EXCEPT SELECT store.name {STORES}",
            f"SELECT name FROM artist EXCEPT SELECT artist.name {STORES} JOIN artist ON concert.artist_id = artist.id",
        ),
        (
            "SELECT name FROM artist INTERSECT SELECT concert.name FROM concert JOIN artist ON concert.artist_id = artist.id",
            "SELECT name FROM artist INTERSECT SELECT artist.name FROM concert JOIN artist ON concert.artist_id = artist.id",
        ),
    ],
)
def test_the_second_side_shows_what_the_first_does(sql: str, then: str) -> None:
    assert compare_sets(sql, SCHEMA) == then
    assert compare_sets(then, SCHEMA) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT country FROM artist INTERSECT SELECT store.country FROM concert JOIN store ON concert.store_id = store.id",
        "SELECT name FROM artist EXCEPT SELECT name FROM film",  # nothing leads from films to artists
        "SELECT id FROM artist EXCEPT SELECT artist_id FROM concert",  # the key that refers to it
        "SELECT name FROM artist EXCEPT SELECT name FROM artist WHERE country = 'Norway'",
        "SELECT name, country FROM artist EXCEPT SELECT name, country FROM store",
        "SELECT name FROM artist UNION SELECT name FROM store",
        "SELECT name FROM artist",
        "SELECT name FROM artist EXCEPT SELECT",
    ],
)
def test_what_compares_stays(sql: str) -> None:
    assert compare_sets(sql, SCHEMA) is None
