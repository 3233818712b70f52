"""Guards the changes of a former query for which a short second question asks: certain ones, or none at all."""

from collections.abc import Iterator

import pytest

from tools.adapt.adapt_filter import FILTER_CHANGES, adapt_query
from tools.adapt.adapt_order import ORDER_CHANGES, SHAPE_CHANGES, compare_queries
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database
from tools.linking.match_values import match_values

COUNT = "SELECT COUNT(*) FROM customers WHERE country = 'Germany'"
LIST = "SELECT title FROM albums WHERE label = 'Tidal Wax'"
GROUPED = "SELECT kind, COUNT(*) FROM artists GROUP BY kind"
AVERAGE = "SELECT AVG(list_price) FROM albums"
YEARS = "SELECT COUNT(*) FROM orders WHERE ordered_at >= '2024-01-01' AND ordered_at < '2025-01-01'"
STORES = "SELECT name, city FROM stores"
NAMED = (
    "SELECT ANY_VALUE(stores.name), COUNT(*) FROM stores JOIN concerts ON concerts.store_id = stores.store_id "
    "GROUP BY concerts.store_id"
)
TOP = "SELECT city FROM customers GROUP BY city ORDER BY COUNT(*) DESC LIMIT 1"
QUANTITY = "SELECT SUM(quantity) FROM order_lines WHERE format = 'cassette'"
STAFF = "SELECT full_name FROM employees WHERE store_id = 6"
BY_STORE = (
    "SELECT stores.name, COUNT(*) FROM concerts JOIN stores ON concerts.store_id = stores.store_id GROUP BY stores.name"
)
CHANGED = (
    (COUNT, "And in Portugal?", "SELECT COUNT(*) FROM customers WHERE country = 'Portugal'"),
    (COUNT, "what about portugal", "SELECT COUNT(*) FROM customers WHERE country = 'Portugal'"),
    (COUNT, "only those from Lisbon", f"{COUNT} AND city = 'Lisbon'"),
    (COUNT, "Only those with an e-mail.", f"{COUNT} AND NOT email IS NULL"),
    (COUNT, "just the ones who get the newsletter", f"{COUNT} AND newsletter"),
    (COUNT, "by city", "SELECT city, COUNT(*) FROM customers WHERE country = 'Germany' GROUP BY city"),
    (YEARS, "And in 2025?", YEARS.replace("2025", "2026").replace("2024", "2025")),
    (LIST, "how many is that?", "SELECT COUNT(*) FROM albums WHERE label = 'Tidal Wax'"),
    (LIST, "Sort them by release date, newest first.", f"{LIST} ORDER BY release_date DESC"),
    (LIST, "newest first", f"{LIST} ORDER BY release_date DESC"),
    (LIST, "alphabetically sorted", None),
    (LIST, "sort them alphabetically", f"{LIST} ORDER BY title NULLS FIRST"),
    (LIST, "Show the list price too", "SELECT title, list_price FROM albums WHERE label = 'Tidal Wax'"),
    (LIST, "only those that cost more than 20 euros", f"{LIST} AND list_price > 20"),
    (LIST, "those released after 2020", f"{LIST} AND EXTRACT(YEAR FROM release_date) > 2020"),
    (LIST, "those reviewed after 2020", None),
    (f"{LIST} ORDER BY list_price DESC", "just the first three", f"{LIST} ORDER BY list_price DESC LIMIT 3"),
    (LIST, "just the first three", None),
    (GROUPED, "... and for each country?", "SELECT country, COUNT(*) FROM artists GROUP BY country"),
    (GROUPED, "Which one has the most?", "SELECT kind FROM artists GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 1"),
    (GROUPED, "fewest first", f"{GROUPED} ORDER BY COUNT(*) NULLS FIRST"),
    (AVERAGE, "and the highest?", "SELECT MAX(list_price) FROM albums"),
    (AVERAGE, "by label", "SELECT label, AVG(list_price) FROM albums GROUP BY label"),
    ("SELECT COUNT(*) FROM concerts", "By store, please, with the store's name.", BY_STORE),
    ("SELECT COUNT(*) FROM concerts", "sorry, I meant by store (names please)", BY_STORE),
    ("SELECT COUNT(*) FROM concerts", "what about by store? I'd like the store names", BY_STORE),
    ("SELECT COUNT(*) FROM concerts", "and for each store, by name?", BY_STORE),
    (STORES, "Oldest store first, please.", f"{STORES} ORDER BY opened_on NULLS FIRST"),
    (STORES, "Oldest album first", None),
    (NAMED, "just in 2025", NAMED.replace("GROUP", "WHERE EXTRACT(YEAR FROM concerts.held_on) = 2025 GROUP")),
    (
        NAMED,
        "Which one held the most?",
        NAMED.replace(", COUNT(*) FROM", " FROM") + " ORDER BY COUNT(*) DESC LIMIT 1",
    ),
    (TOP, "Make it the top five.", TOP.replace("LIMIT 1", "LIMIT 5")),
    (TOP, "and the fewest?", TOP.replace(" DESC", "")),
    (TOP, "and the most?", None),
    (TOP, "and the oldest?", None),
    (
        TOP.replace("SELECT city", "SELECT city, COUNT(*)"),
        "the same top five, but by country",
        None,
    ),
    (
        "SELECT country, COUNT(*) FROM customers GROUP BY country ORDER BY COUNT(*) DESC LIMIT 5",
        "Back to the customers: the same top five, but by city.",
        "SELECT city, COUNT(*) FROM customers GROUP BY city ORDER BY COUNT(*) DESC LIMIT 5",
    ),
    (TOP, "Show how many customers each of them has, too.", TOP.replace("SELECT city", "SELECT city, COUNT(*)")),
    (TOP, "Show how many orders each of them has, too.", None),
    (STAFF, "Add the day each of them was hired.", STAFF.replace("full_name", "full_name, hired_on")),
    (STAFF, "and when they left", STAFF.replace("full_name", "full_name, left_on")),
    (
        "SELECT COUNT(*) FROM albums",
        "Just the ones released since the start of 2020.",
        "SELECT COUNT(*) FROM albums WHERE EXTRACT(YEAR FROM release_date) >= 2020",
    ),
    (
        QUANTITY,
        "How does that break down by payment method?",
        "SELECT orders.payment_method, SUM(order_lines.quantity) FROM order_lines "
        "JOIN orders ON order_lines.order_id = orders.order_id WHERE order_lines.format = 'cassette' "
        "GROUP BY orders.payment_method",
    ),
)
LEFT_ALONE = (
    (COUNT, "How many stores are there?"),
    (COUNT, "And in Portugal and Lisbon?"),
    (COUNT, "And in Portugal as well?"),
    (COUNT, "And in Portugal for those who joined early?"),
    (COUNT, "And in Atlantis?"),
    (LIST, "and by whom are they?"),
    ("SELECT 1 UNION SELECT 2", "how many is that?"),
    ("not sql at all (", "how many is that?"),
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    opened = open_database(example_database(tmp_path_factory.mktemp("shop")))
    yield opened
    opened.close()


def _adapted(former: str, question: str, shop: Database) -> str | None:
    changes = (*FILTER_CHANGES, *ORDER_CHANGES, *SHAPE_CHANGES)
    return adapt_query(question, former, match_values(shop, question), shop.schema(), changes)


@pytest.mark.parametrize(("former", "question", "wanted"), CHANGED)
def test_a_change_that_is_sure(former: str, question: str, wanted: str | None, shop: Database) -> None:
    changed = _adapted(former, question, shop)
    assert changed == wanted
    assert changed is None or shop.explain(changed) is None


@pytest.mark.parametrize(("former", "question"), LEFT_ALONE)
def test_what_is_left_to_the_model(former: str, question: str, shop: Database) -> None:
    """A filter that is replaced although more was said would be a wrong answer that looks sure."""
    assert _adapted(former, question, shop) is None


def test_a_name_is_joined_where_its_table_is_not_read(shop: Database) -> None:
    changed = _adapted("SELECT COUNT(*) FROM albums", "by genre", shop)
    assert changed == (
        "SELECT genres.name, COUNT(*) FROM albums JOIN genres ON albums.genre_id = genres.genre_id GROUP BY genres.name"
    )
    added = _adapted("SELECT title FROM albums", "show the artist's name too", shop)
    assert added == "SELECT albums.title, artists.name FROM albums JOIN artists ON albums.artist_id = artists.artist_id"


@pytest.mark.parametrize(
    ("question", "formers", "is_sure"),
    [
        ("and which of them has more?", (COUNT, COUNT.replace("Germany", "Portugal")), True),
        ("Which of the two has the fewest?", (COUNT, COUNT.replace("Germany", "Portugal")), True),
        ("Which of them has the most?", (COUNT, COUNT.replace("Germany", "Portugal")), False),  # of how many?
        ("Which of the two has more?", (COUNT, COUNT), False),
        ("Which of the two has more?", (COUNT, LIST), False),
        ("Which of the two has more?", (COUNT,), False),
        ("Which of the two has more albums?", (COUNT, COUNT.replace("Germany", "Portugal")), False),
    ],
)
def test_former_answers_are_compared(question: str, formers: tuple[str, ...], is_sure: bool, shop: Database) -> None:
    compared = compare_queries(question, formers, shop.dialect)
    assert (compared is not None) == is_sure
    assert compared is None or shop.explain(compared) is None
