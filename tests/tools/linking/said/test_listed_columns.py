"""The list of columns at a question's head counts where it holds nothing else, and where nothing is asked for behind it."""

import pytest

from tools.linking.said.listed_columns import listed_columns
from tools.schema import Column, Schema, Table


def table(name: str, *columns: str) -> Table:
    return Table(name, tuple(Column(column, "TEXT") for column in columns))


SCHEMA = Schema(
    (
        table("wine", "grape", "winery", "price", "population", "population_density", "name"),
        table("prescribes", "physician", "dose"),
        table("physician", "name", "position"),
    ),
    "sqlite",
)


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("What are the grape, winery and price of the wines?", ["grape", "winery", "price"]),
        ("Show me the different wineries of red wines", ["winery"]),
        ("Find the population density of the states.", ["population_density"]),
        ("List the price and winery sorted by price", ["price", "winery"]),
        ("What is the price winery of the wines?", []),  # names without a comma: no list, or another name
        ("What is the average price of the wines?", []),
        ("What are the wineries of the wines and their names?", []),  # more is asked for
        ("What are the wineries of the wines? Give their prices.", []),
        ("What are the wineries of the wines? Give the price.", []),
        ("Which wines are red? Only the names, please.", ["name"]),
        ("Which wines are red? Only the price.", ["price"]),
        ("Which wines are red? Winery and price", ["winery", "price"]),
        ("who makes the red wine? I need the winery of it", ["winery"]),
        ("Which wines are red? By price.", []),
        ("What is the price of each wine?", []),
        ("What is the name and price of the wines?", []),  # whose name?
        ("Find the physician that prescribed the highest dose.", []),  # the person, or the key
        ("What is the price?", []),
        ("How many wineries of red wines are there?", []),
    ],
)
def test_what_is_listed(question: str, names: list[str]) -> None:
    assert [next(iter(places))[1] for places in listed_columns(SCHEMA, question)] == names
