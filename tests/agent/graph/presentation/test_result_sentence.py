"""The one sentence of an answer: it answers, and claims no order that there is not."""

import pytest

from agent.presentation.sentence import result_sentence
from agent.presentation.shown import cell_text, in_column, kind_of_cells
from tests.agent.graph.presentation.conftest import Explain

BY_GENRE = "FROM albums JOIN genres ON albums.genre_id = genres.genre_id GROUP BY genres.name"


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT count(*) FROM albums", "4 albums."),
        ("SELECT count(*) FROM albums WHERE price > 1000", "1 album."),
        ("SELECT avg(price) FROM albums", "Average price: 318.94."),
        ("SELECT sum(price) FROM albums WHERE price < 0", "There is no total price."),
        (f"SELECT genres.name, count(*) {BY_GENRE}", "2 genres; Jazz leads with 3 albums."),
        (f"SELECT genres.name {BY_GENRE} ORDER BY count(*) DESC LIMIT 1", "Jazz has most albums: 3."),
        (f"SELECT genres.name {BY_GENRE} ORDER BY count(*) LIMIT 1", "Rock has fewest albums: 1."),
        (f"SELECT genres.name, avg(price) {BY_GENRE} ORDER BY 2", "2 genres; Jazz is lowest with an average price of 13.92."),
        ("SELECT title FROM albums ORDER BY price DESC LIMIT 1", "Three has the highest price: 1,234."),
        ("SELECT title FROM albums ORDER BY released LIMIT 1", "Title: Four; released: 1999."),
        ("SELECT title, sold_on FROM albums WHERE sold_on IS NOT NULL ORDER BY sold_on LIMIT 1",
         "One: sold on 2024-01-02, the earliest."),
        ("SELECT released, count(*) FROM albums GROUP BY released", "3 rows: released, albums."),
        ("SELECT title, released FROM albums", "4 albums: title, released."),
        ("SELECT title FROM albums ORDER BY title", "4 albums: Four, One, Three, Two."),
        ("SELECT title, sum(released) AS age_years FROM albums WHERE genre_id = 1 GROUP BY title",
         "3 albums; Two leads with an age of 2,011 years."),
        (f"SELECT genres.name, count(*) * 10 AS copies {BY_GENRE}", "2 genres; Jazz leads with 30 copies."),
        ("SELECT name FROM genres WHERE genre_id = 3", "Name: [bold]."),
        ('SELECT price > 10 AS "paid?" FROM albums', "4 rows: paid."),
    ],
)  # fmt: skip
def test_sentences(explain: Explain, sql: str, sentence: str) -> None:
    assert result_sentence(explain(sql)) == sentence


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT title FROM albums WHERE price < 15 ORDER BY person_id LIMIT 1",
         "Title: One; person: Bo Lind."),
        ("SELECT manager_id FROM people WHERE person_id > 1 GROUP BY manager_id ORDER BY count(*) LIMIT 1",
         "Ada Moss has fewest people: 2."),
        ("SELECT title FROM albums GROUP BY title ORDER BY count(*) DESC LIMIT 1",
         "Two has most albums: 1. 4 share this place: Two, Three, One and Four."),
        ("SELECT genre_id FROM albums GROUP BY genre_id, price ORDER BY count(*) DESC LIMIT 1",
         "Rock has most albums: 1. 4 share this place."),
        ("SELECT title FROM albums ORDER BY price - price LIMIT 1 OFFSET 1", "Two has the lowest price − price: 0."),
        ("SELECT a.title FROM albums a, range(30) ORDER BY a.released LIMIT 1", "Title: Four; released: 1999."),
        ("SELECT a.title, r.range FROM albums a, range(30) AS r ORDER BY a.price LIMIT 1",
         "One has the lowest price: 9.50. More than 20 share this place."),
    ],
)  # fmt: skip
def test_who_else_has_the_first_place_is_said(explain: Explain, sql: str, sentence: str) -> None:
    assert result_sentence(explain(sql)) == sentence


def test_nobody_leads_among_equals(explain: Explain) -> None:
    sentence = result_sentence(explain("SELECT title, count(*) FROM albums GROUP BY title"))
    assert sentence == "4 albums and their albums."


def test_cells() -> None:
    from datetime import date, datetime
    from decimal import Decimal

    assert in_column([26.253333333333334, 3, None], "amount") == ["26.25", "3.00", "–"]
    assert in_column([Decimal("1234567.5"), Decimal(2)], "amount") == ["1,234,567.50", "2.00"]
    assert in_column([0.00456], "amount") == ["0.0046"]
    assert in_column([float("nan"), float("inf")], "amount") == ["nan", "inf"]
    assert cell_text(datetime(2024, 1, 2)) == "2024-01-02"
    assert cell_text(datetime(2024, 1, 2, 3, 4)) == "2024-01-02 03:04:00"
    assert cell_text(date(2024, 1, 2)) == "2024-01-02"
    assert (cell_text(True), cell_text(b"abc")) == ("yes", "(3 bytes)")
    assert kind_of_cells("released", [2010, 1999, None], False, False) == "digits"
    assert kind_of_cells("albums", [2010, 1999], False, True) == "amount"
    assert kind_of_cells("zip_code", [12345], False, False) == "digits"
