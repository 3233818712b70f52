"""What a question names and SQL lacks, without a model: which omissions are warned of, and what is said in another form."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.assemble import ModelChoice
from agent.assistant import Assistant
from agent.context import AgentContext, AgentOptions
from agent.prompts.profiles import load_profile
from agent.second_opinion import with_question
from tests.agent.conftest import ScriptedModel
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Limits, QueryError, Result
from tools.review import review

SHOP = """
CREATE TABLE country (code TEXT PRIMARY KEY, name TEXT, region TEXT);
INSERT INTO country VALUES ('ES', 'Spain', 'south'), ('PT', 'Portugal', 'south'), ('SE', 'Sweden', 'north');
CREATE TABLE booking (booking_id INTEGER PRIMARY KEY, country TEXT REFERENCES country, state TEXT, day INTEGER,
                      at TEXT, price_cents INTEGER);
CREATE TABLE booking_state (state TEXT, sorting INTEGER);
INSERT INTO booking_state VALUES ('booked', 1), ('cancelled', 2);
INSERT INTO booking VALUES (1, 'ES', 'cancelled', 20230901, '2023-09-01 18:00', 900),
                           (2, 'PT', 'paid', 20230902, '2023-09-02 17:30', 90000);
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Database]:
    file = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(file)) as made:
        made.executescript(SHOP)
    with closing(open_database(file, engine="sqlite")) as opened:
        yield opened


def warned(shop: Database, question: str, sql: str) -> list[str]:
    def run(query: str) -> Result | QueryError:
        return shop.execute(query)

    found = with_question(review(sql, shop, run), shop, run, question, "", None)
    assert found.error is None, found.error
    return [each.sentence for each in found.findings if each.kind == "unused_value"]


@pytest.mark.parametrize(
    ("question", "sql"),
    [
        ("How many bookings are from Spain?", "SELECT COUNT(*) FROM booking WHERE country = 'ES'"),
        ("Who booked most?", "SELECT country, COUNT(*) FROM booking GROUP BY country"),
        ("Bookings per country, cancelled ones included", "SELECT country, COUNT(*) FROM booking GROUP BY country"),
        ("Bookings of September 2023", "SELECT booking_id FROM booking WHERE day BETWEEN 20230901 AND 20230930"),
        ("Bookings of 2023", "SELECT booking_id FROM booking WHERE at LIKE '%/23'"),
        ("Bookings above 100 euros", "SELECT booking_id FROM booking WHERE price_cents > 10000"),
        ("Bookings after 5 pm", "SELECT booking_id FROM booking WHERE strftime('%H', at) >= '17'"),
        ("Bookings before 18:30", "SELECT booking_id FROM booking WHERE strftime('%H', at) < '18'"),
        ("Bookings per weekday, 0 is Sunday", "SELECT strftime('%w', at), COUNT(*) FROM booking GROUP BY 1"),
    ],
)
def test_what_is_said_in_another_form_is_not_warned_of(shop: Database, question: str, sql: str) -> None:
    """Codes of a value, other forms of a word, parts of dates and other units were most of the false warnings."""
    assert warned(shop, question, sql) == []


@pytest.mark.parametrize(
    ("question", "sql", "says"),
    [
        ("How many bookings are from Spain?", "SELECT COUNT(*) FROM booking", "Spain"),
        ("How many bookings are from Spain?", "SELECT COUNT(*) FROM booking WHERE country = 'PT'", "Spain"),
        ("How many are in the north?", "SELECT COUNT(*) FROM country WHERE code = 'ES'", "north"),
        # two countries are in the south, so neither's code stands for it
        ("How many are in the south?", "SELECT COUNT(*) FROM country WHERE code = 'ES'", "south"),
        ("Cancelled bookings that are included in 2023", "SELECT booking_id FROM booking", "2023"),
        ("Cancelled bookings, those of Spain included", "SELECT booking_id FROM booking", "ancelled"),
        ("Bookings of 2023", "SELECT booking_id FROM booking WHERE day > 20220101", "2023"),
        ("Bookings above 100 euros", "SELECT booking_id FROM booking WHERE price_cents > 900", "100"),
        ("Bookings after 5 pm", "SELECT booking_id FROM booking WHERE strftime('%H', at) >= '18'", "17"),
    ],
)
def test_what_is_left_out_is_warned_of(shop: Database, question: str, sql: str, says: str) -> None:
    assert any(says in told for told in warned(shop, question, sql)), warned(shop, question, sql)


class _Scripted:
    """In the place of a loaded model: writes a plan, and SQL that does not run."""

    def __init__(self) -> None:
        self.model = ScriptedModel(
            responses=["booking: price_cents", "SELECT price_cents FROM booking WHERE nothing > 1"]
        )

    def toolbox(self, database: Database, options: AgentOptions, limits: Limits) -> AgentContext:
        return AgentContext(database, self.model, load_profile("compact"), options, limits)


def test_a_review_asks_the_model_for_one_reading(shop: Database) -> None:
    """Guards against corrections and second looks, which a review would have to wait for."""
    model = _Scripted()
    found = Assistant(shop, ModelChoice(), model=model).check("SELECT price_cents FROM booking", "What are the prices?")  # type: ignore[arg-type]
    assert model.model.calls == 2
    assert "other_reading" in {each.kind for each in found.findings}
