"""Guards questions from templates against wrong directions, unnatural words and results that say nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from eval.datasets.gold_databases import TrainingDatabase
from eval.datasets.gold_sql import GoldError, sql_text
from tools.databases.open_database import open_database
from training.data.build import build
from training.data.examples import Item
from training.data.options import Options, Tally
from training.data.parts import TEMPLATED_KINDS as KINDS
from training.data.parts import telling, templated
from training.packs.groups import read_groups
from training.templates.labels import Asked, Author, Labels
from training.templates.times import meaning

_SQL = """
CREATE TABLE harbour (harbour_id INTEGER PRIMARY KEY, name TEXT, depth REAL, opening_year INTEGER);
CREATE TABLE crew (crew_id INTEGER PRIMARY KEY, name TEXT, age INTEGER, birth_year INTEGER);
CREATE TABLE boat (boat_id INTEGER PRIMARY KEY, name TEXT, length REAL, status TEXT, insured_yn TEXT, sail TEXT,
  harbour_id INTEGER REFERENCES harbour(harbour_id));
CREATE TABLE sails_on (crew_id INTEGER REFERENCES crew(crew_id), boat_id INTEGER REFERENCES boat(boat_id));
CREATE TABLE sighting (sighting_id INTEGER PRIMARY KEY, title TEXT, weather TEXT, reported_on DATE, confirmed_on DATE);
INSERT INTO sighting VALUES (1, 'Whale', 'fog', '2019-01-02', NULL), (2, 'Seal', NULL, '2020-03-04', '2020-03-05'),
  (3, 'Squid', NULL, '2021-05-06', NULL);
INSERT INTO harbour VALUES (1, 'Cadiz', 9, 1890), (2, 'Faro', 7, 1920), (3, 'Vigo', 12, 1950), (4, 'Bilbao', 4, 1970);
INSERT INTO crew VALUES (1, 'Ann', 31, 1990), (2, 'Bo', 45, 1976), (3, 'Cy', 27, 1994), (4, 'Di', 52, 1969);
INSERT INTO boat VALUES (1, 'Gull', 9, 'Active', 'Y', 'lug', 1), (2, 'Tern', 7, 'Sunk', 'N', 'lug', 1),
  (3, 'Auk', 12, 'Active', 'Y', 'gaff', 2), (4, 'Erne', 5, 'Active', 'N', 'gaff', 1), (5, 'Smew', 6, 'Sunk', 'N', 'gaff', 1);
INSERT INTO sails_on VALUES (1, 1), (2, 1), (3, 2);
"""


@pytest.fixture
def boats(tmp_path: Path) -> Iterator[Labels]:
    file = tmp_path / "boats.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(_SQL)
    engine = open_database(file, engine="sqlite")
    database = TrainingDatabase("boats", engine.schema(), engine, has_rows=True)
    yield Labels(database)
    database.close()


def _made(labels: Labels, kind: str, seeds: int = 6) -> list[Item]:
    return [item for seed in range(seeds) for item in templated(labels, {kind: 1.0}, Random(seed), Tally())]


def _sqls(items: list[Item]) -> set[str]:
    return {sql_text(item.target.tree) for item in items}


def test_without_with_most_and_both_run_over_a_foreign_key(boats: Labels) -> None:
    items = _made(boats, "sets")
    sqls = _sqls(items)
    assert "SELECT name FROM harbour WHERE harbour_id NOT IN (SELECT harbour_id FROM boat)" in sqls
    assert "SELECT COUNT(*) FROM harbour WHERE harbour_id IN (SELECT harbour_id FROM boat)" in sqls
    assert any(" INTERSECT " in sql for sql in sqls) and any(" EXCEPT " in sql for sql in sqls)
    most = [item for item in items if "ORDER BY COUNT(*) DESC LIMIT 1" in sql_text(item.target.tree)]
    assert most and all("boats" in item.text or "crew" in item.text for item in most)
    assert all(item.target.rows for item in items)


def test_empty_columns_are_asked_for_in_words(boats: Labels) -> None:
    found = {item.text: sql_text(item.target.tree) for item in _made(boats, "blanks", 40)}
    assert found["How many sightings have no weather?"] == "SELECT COUNT(*) FROM sighting WHERE weather IS NULL"
    assert found["How many sightings have been confirmed?"] == (
        "SELECT COUNT(*) FROM sighting WHERE confirmed_on IS NOT NULL"
    )
    assert found["Count the sightings that were never confirmed."] == (
        "SELECT COUNT(*) FROM sighting WHERE confirmed_on IS NULL"
    )
    assert found["What are the titles of the sightings without a weather?"] == (
        "SELECT title FROM sighting WHERE weather IS NULL"
    )
    assert not [text for text in found if "sighting id" in text or "confirmed on" in text]


def test_what_was_done_first_and_last(boats: Labels) -> None:
    found = {item.text: sql_text(item.target.tree) for item in _made(boats, "superlatives", 40)}
    assert found["Which sighting was reported last? Just the title."] == (
        "SELECT title FROM sighting ORDER BY reported_on DESC LIMIT 1"
    )


def test_a_share_of_zero_draws_nothing(boats: Labels) -> None:
    """So data that were built before a kind was added can be built again."""
    rngs = Random(3), Random(3)
    made = [
        templated(boats, shares, rng, Tally())
        for shares, rng in zip(({"sets": 0.5, "blanks": 0.0}, {"sets": 0.5}), rngs, strict=True)
    ]
    assert [item.text for item in made[0]] == [item.text for item in made[1]]
    assert rngs[0].random() == rngs[1].random()


def test_a_table_that_only_links_two_is_called_by_the_other_one(boats: Labels) -> None:
    """Nobody asks for crews without sails on."""
    texts = [item.text for kind in KINDS for item in _made(boats, kind)]
    assert not [text for text in texts if "sails on" in text]
    assert any("boat" in item.text for item in _made(boats, "sets") if "sails_on" in sql_text(item.target.tree))


@pytest.mark.parametrize(
    ("word", "order"),
    [
        ("youngest", "age ASC"),
        ("youngest", "birth_year DESC"),
        ("oldest", "birth_year ASC"),
        ("oldest", "opening_year ASC"),
        ("newest", "opening_year DESC"),
        ("deepest", "depth DESC"),
        ("shortest", "length ASC"),
    ],
)
def test_a_superlative_sorts_as_its_column_means(boats: Labels, word: str, order: str) -> None:
    column = order.split()[0]
    sorted_by = {
        sql.split("ORDER BY ")[1].split(" LIMIT")[0].removesuffix(" ASC")
        for item in _made(boats, "superlatives", 12)
        if word in item.text and f"ORDER BY {column}" in (sql := sql_text(item.target.tree))
    }
    assert sorted_by == {order.removesuffix(" ASC")}


def test_tied_ends_are_not_asked_for(boats: Labels) -> None:
    author = Author(boats, Random(0))
    boat = next(table for table in author.tables if table.name == "boat")
    assert author.distinct_top(boat, "length", "DESC", 2) and not author.distinct_top(boat, "status", "DESC")
    assert meaning("average price") is meaning("price") and meaning("colour") is None


def test_flags_and_states_are_said_as_people_say_them(boats: Labels) -> None:
    items = _made(boats, "conditions")
    said = {item.text: sql_text(item.target.tree) for item in items}
    insured = [(text, sql) for text, sql in said.items() if " insured" in text]
    assert insured and not any("yn" in text for text in said)
    for text, sql in insured:
        assert ("'N'" in sql) == ("not insured" in text), text
    assert any("active boats" in text and "status = 'Active'" in sql for text, sql in said.items())


def test_the_second_table_is_joined_only_where_it_is_asked_for(boats: Labels) -> None:
    for item in _made(boats, "tables"):
        sql = sql_text(item.target.tree)
        assert ("JOIN harbour" in sql) == (
            "harbour" in item.text and " id" not in item.text and "FROM harbour" not in sql
        )
    assert "SELECT COUNT(*) FROM crew" in _sqls(_made(boats, "tables"))


@pytest.mark.parametrize(
    "asked",
    [
        Asked("Which boats are longer than 90?", "SELECT name FROM boat WHERE length > 90", "boat"),
        Asked("Which boats are longer than 1?", "SELECT name FROM boat WHERE length > 1", "boat"),
        Asked("How many boats are longer than 90?", "SELECT COUNT(*) FROM boat WHERE length > 90"),
        Asked("Which boats fly?", "SELECT wings FROM boat"),
    ],
)
def test_a_result_that_says_nothing_is_refused(boats: Labels, asked: Asked) -> None:
    with pytest.raises(GoldError):
        telling(asked, boats.database)


def test_templates_of_held_out_databases_are_held_out_by_kind(spider: Path, tmp_path: Path) -> None:
    options = Options(variants=0, spider_syn=0, databases=("farm", "aircraft"))
    build(spider.parent, tmp_path, options, lambda text: len(text.split()), lambda line: None)

    def kinds(name: str) -> set[str]:
        return {pair.id.split("/")[0] for group in read_groups(tmp_path / name) for pair in group.pairs}

    assert kinds("train.jsonl") >= {"spider", "tables", "sets"} and kinds("held_out.jsonl") <= {"spider", "spider_syn"}
    for kind in ("tables", "sets", "superlatives"):
        assert kinds(f"held_out/{kind}.jsonl") == {kind}
