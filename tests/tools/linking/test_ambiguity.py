"""Guards when the asker is asked back: if the data leave a question open, and hardly ever otherwise."""

from collections.abc import Iterator

import pytest

from tests.tools import spider
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.linking.link_schema import link
from tools.linking.match_values import match_values
from tools.linking.questions import Meaning, as_told, find_unclear

MOST_ASKED = 0.03  # of the questions that people wrote for these databases
FILES = {
    "places.csv": "city_id,city,founded\n1,Paris,250\n2,Florence,59\n",
    "guests.csv": "guest_id,first_name,nick,age,city_id,badge_no\n1,Paris,Paris,31,2,B1\n2,Ada,Ace,40,1,B2\n",
    "guides.csv": "guide_id,full_name,age,region,badge_no\n1,Cy Ash,50,Florence,B3\n2,Bo Elm,60,Rome,B1\n",
    "stops.csv": "stop_code,stop_name,town\nS1,Lyon,Nice\nS2,Mill,Lyon\n",
}


@pytest.fixture(scope="module")
def tours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("tours")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    opened = open_database([folder / name for name in FILES])
    yield opened
    opened.close()


def unclear(database: Database, question: str) -> tuple[Meaning, ...]:
    values = match_values(database, question)
    return find_unclear(database, question, values, link(database.schema(), question, values))


@pytest.mark.parametrize(
    ("question", "places"),
    [
        ("How many are in Florence?", {("places", "city"), ("guides", "region")}),
        ("How many are there for Paris?", {("places", "city"), ("guests", "first_name")}),  # nick is in the same rows
        ("What is the average age?", {("guests", "age"), ("guides", "age")}),
        ("Average age of guests?", set()),
        ("List the stop code and stop name in the town of Lyon.", set()),  # the word next to it decides
        ("Which region is Florence?", set()),
        ("Which guests come from Rome?", set()),
        ("What is the average age of kids?", set()),  # another word for guests, perhaps
        ("What is the age of Ada?", set()),
        ("How many for each badge_no?", set()),  # joins equate the two
    ],
)
def test_what_is_left_open(tours: Database, question: str, places: set[tuple[str, str]]) -> None:
    found = unclear(tours, question)
    assert {one.place for one in found} == places


def test_the_chosen_meaning_rules_out_the_others(tours: Database) -> None:
    values = match_values(tours, "How many are in Florence?")
    city = next(one for one in unclear(tours, "How many are in Florence?") if one.table == "places")
    assert city.evidence == "Florence refers to places.city = 'Florence'"
    assert {match.table for match in as_told(values, city.evidence)} == {"places"}
    assert as_told(values, "Florence is a city") == values


def test_people_are_seldom_asked_back() -> None:
    """Spider's dev questions were written to be answered: each question back is a false alarm, or nearly so."""
    some = [question for question in spider.questions() if question.db_id in ("car_1", "flight_2", "world_1")]
    asked = [question.text for question in some if unclear(spider.database(question.db_id, "auto"), question.text)]
    assert len(asked) <= MOST_ASKED * len(some), asked
