"""Wrong SQL is repaired or left alone, as judged by running it: on Spider's databases in SQLite, on the shop in DuckDB."""

import sqlite3
from contextlib import closing

import pytest

from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database
from tools.repair.lost_columns import COLUMN_RULES, ColumnRule
from tools.repair.names import repair_names
from tools.result import QueryError
from tools.schema import Column, Schema, Table


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return open_database(example_database(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def singers(tmp_path_factory: pytest.TempPathFactory) -> Database:
    path = tmp_path_factory.mktemp("repair") / "singers.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("""
            CREATE TABLE country (country_id INTEGER PRIMARY KEY, country_name TEXT, capital TEXT);
            CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, age INTEGER, country_id INTEGER REFERENCES country);
            CREATE TABLE song (song_id INTEGER PRIMARY KEY, title TEXT, sales REAL, singer_id INTEGER REFERENCES singer,
              producer_id INTEGER REFERENCES producer);
            CREATE TABLE producer (producer_id INTEGER PRIMARY KEY, nickname TEXT, rival_id INTEGER REFERENCES singer,
              friend_id INTEGER REFERENCES singer, grade TEXT);
            INSERT INTO country VALUES (1, 'France', 'Paris'), (2, 'Peru', 'Lima');
            INSERT INTO singer VALUES (1, 'Ann', 30, 1), (2, 'Bo', 40, 2), (3, 'Cy', 50, 1);
            INSERT INTO producer VALUES (1, 'Zed', 1, 2, 'A');
            INSERT INTO song VALUES (1, 'Sun', 9, 1, 1), (2, 'Moon', 5, 2, 1), (3, 'Sea', 7, 1, NULL);
        """)
    return open_database(path, engine="sqlite")


REPAIRED = [
    # the column belongs to the other table of the query
    (
        "SELECT T2.name FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id WHERE T2.sales > 6",
        "SELECT T2.name FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id WHERE T1.sales > 6",
    ),
    # the real name of a table that has an alias
    (
        "SELECT singer.name FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id",
        "SELECT T2.name FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id",
    ),
    (
        "SELECT singer.singer_id FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id",
        "SELECT T2.singer_id FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id",
    ),
    # an alias that nobody declared
    (
        "SELECT T3.name FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id",
        "SELECT T2.name FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id",
    ),
    # misspelt columns and tables
    ("SELECT title FROM song ORDER BY salse DESC", "SELECT title FROM song ORDER BY sales DESC"),
    ("SELECT capitl FROM country", "SELECT capital FROM country"),
    ("SELECT name FROM singers", "SELECT name FROM singer"),
    ("SELECT singers.name FROM singers", "SELECT singer.name FROM singer"),
    ("SELECT name FROM Singr", "SELECT name FROM singer"),
    ("SELECT SongTitle FROM song", "SELECT title FROM song"),
    ("SELECT singer.singer_name FROM singer", "SELECT singer.name FROM singer"),
    ("SELECT country.name FROM country", "SELECT country.country_name FROM country"),
    ("SELECT singerId FROM singer", "SELECT singer_id FROM singer"),
    (
        "SELECT name FROM singer WHERE singer_id IN (SELECT singerid FROM song)",
        "SELECT name FROM singer WHERE singer_id IN (SELECT singer_id FROM song)",
    ),
    # a table that is missing
    (
        "SELECT name, capital FROM singer",
        "SELECT singer.name, country.capital FROM singer JOIN country ON singer.country_id = country.country_id",
    ),
    (
        "SELECT sg.name FROM song",
        "SELECT singer.name FROM song JOIN singer ON song.singer_id = singer.singer_id",
    ),
    (
        "SELECT title FROM song WHERE capital = 'Paris'",
        "SELECT song.title FROM song JOIN singer ON song.singer_id = singer.singer_id "
        "JOIN country ON singer.country_id = country.country_id WHERE country.capital = 'Paris'",
    ),
    (
        "SELECT T1.name FROM singer AS T1 WHERE T1.capital = 'Lima'",
        "SELECT T1.name FROM singer AS T1 JOIN country ON T1.country_id = country.country_id WHERE country.capital = 'Lima'",
    ),
    (
        "SELECT * FROM singer WHERE country.capital = 'Lima'",
        "SELECT singer.* FROM singer JOIN country ON singer.country_id = country.country_id WHERE country.capital = 'Lima'",
    ),
    # two mistakes at once
    (
        "SELECT T1.title FROM songs AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id WHERE T1.age > 35",
        "SELECT T1.title FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id WHERE T2.age > 35",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "right"), REPAIRED)
def test_mended(singers: Database, wrong: str, right: str) -> None:
    error = singers.explain(wrong)
    assert error is not None
    fixed = repair_names(wrong, error, singers.schema())
    assert fixed == right
    assert singers.explain(fixed) is None
    assert repair_names(fixed, None, singers.schema()) is None
    assert repair_names(wrong, None, singers.schema()) == right


@pytest.mark.parametrize("rule", COLUMN_RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_something_stays_wrong(
    singers: Database, monkeypatch: pytest.MonkeyPatch, rule: ColumnRule
) -> None:
    """Guards against a rule that no statement needs, and against statements that would pass without their rule."""
    monkeypatch.setattr("tools.repair.names.COLUMN_RULES", tuple(other for other in COLUMN_RULES if other is not rule))
    assert any(repair_names(wrong, None, singers.schema()) != right for wrong, right in REPAIRED)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nickname FROM singer",  # two keys lead from producer to singer, rival and friend
        "SELECT colour FROM singer",
        "SELECT name FROM table_of_nothing",
        "SELECT T1.nothing FROM song AS T1 JOIN singer AS T2 ON T1.singer_id = T2.singer_id",
        "SELECT producer_id FROM (SELECT singer_id FROM song) AS s",  # whose join would change the sub-query
        "SELECT a.capital FROM singer AS a JOIN singer AS b ON a.age < b.age",  # which of the two?
        "SELECT FROM WHERE",
        "",
        "DELETE FROM singers",
        "SELECT 1; SELECT nam FROM singer",
    ],
)
def test_left_alone(singers: Database, sql: str) -> None:
    """Guards against guesses: more than one reading is left, or none, or it is no query."""
    assert repair_names(sql, None, singers.schema()) is None
    assert repair_names(sql, QueryError("unknown_column", "no such column"), singers.schema()) is None


@pytest.mark.parametrize("kind", ["refused", "timeout", "memory", "interrupted", "connection"])
def test_errors_that_are_not_about_names(singers: Database, kind: str) -> None:
    assert repair_names("SELECT nam FROM singers", QueryError(kind, "stopped"), singers.schema()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT name FROM singer WHERE name = "Ann"',  # a string, to SQLite
        "SELECT rowid FROM singer",
        "SELECT name AS n FROM singer WHERE n = 'Bo' ORDER BY n",
        "SELECT n FROM (SELECT name AS n FROM singer)",
        "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 3) SELECT i FROM c",
        "WITH singer AS (SELECT title AS sung FROM song) SELECT sung FROM singer",
        "SELECT name FROM singer AS s WHERE EXISTS (SELECT 1 FROM song WHERE song.singer_id = s.singer_id AND age > 20)",
        "SELECT country_id FROM singer JOIN country USING (country_id)",
        "SELECT name FROM singer UNION SELECT title FROM song ORDER BY name",
        "SELECT main.singer.name FROM main.singer",
        "VALUES (1)",
    ],
)
def test_fine_statements_are_never_changed(singers: Database, sql: str) -> None:
    assert singers.explain(sql) is None
    assert repair_names(sql, None, singers.schema()) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name.first FROM people",  # a field of a STRUCT column
        "SELECT list_transform([1, 2], x -> x + 1) FROM people",
        "SELECT u.item FROM people, unnest(tags) AS u(item)",
        "SELECT i FROM range(3) AS r(i)",
        "SELECT idd FROM people AS p(idd)",
        "SELECT q.idd, q.tags FROM (SELECT id, tags FROM people) AS q(idd)",
        "WITH c(idd) AS (SELECT id FROM people) SELECT idd FROM c",
        "SELECT people FROM people",  # the row itself
        "SELECT n: id FROM people",
    ],
)
def test_constructions_of_duckdb_are_never_changed(sql: str) -> None:
    """Guards against calling something unknown only because it is no plain column."""
    columns = (Column("id", "INTEGER"), Column("name", "STRUCT(first VARCHAR)"), Column("tags", "VARCHAR[]"))
    assert repair_names(sql, None, Schema((Table("people", columns),), "duckdb")) is None


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (
            'SELECT count(*) FROM customers WHERE city = "Lisbon"',
            "SELECT COUNT(*) FROM customers WHERE city = 'Lisbon'",
        ),
        (
            "SELECT artists.name, count(*) FROM albums JOIN artists ON albums.artist_id = artists.artist_id "
            "GROUP BY albums.artist_id",
            "SELECT ANY_VALUE(artists.name), COUNT(*) FROM albums JOIN artists ON albums.artist_id = artists.artist_id "
            "GROUP BY albums.artist_id",
        ),
        ("SELECT title FROM albums WHERE title > 5", "SELECT title FROM albums WHERE title > '5'"),
        (
            "SELECT title FROM albums ORDER BY album_id LIMIT 1, 2",
            "SELECT title FROM albums ORDER BY album_id LIMIT 2 OFFSET 1",
        ),
        (
            "SELECT customer_id FROM orders JOIN customers ON orders.customer_id = customers.customer_id",
            "SELECT orders.customer_id FROM orders JOIN customers ON orders.customer_id = customers.customer_id",
        ),
        (
            "SELECT artists.name FROM artists JOIN albums ON albums.artist_id = artists.artist_id "
            "JOIN genres ON genres.genre_id = albums.genre_id WHERE name = 'Techno' ORDER BY artists.name",
            "SELECT artists.name FROM artists JOIN albums ON albums.artist_id = artists.artist_id "
            "JOIN genres ON genres.genre_id = albums.genre_id WHERE artists.name = 'Techno' ORDER BY artists.name",
        ),
    ],
)
def test_what_duckdb_says_no_to(shop: Database, wrong: str, right: str) -> None:
    """SQLite's habits, and names that the join or the output list settles."""
    error = shop.explain(wrong)
    assert error is not None
    fixed = repair_names(wrong, error, shop.schema())
    assert fixed == right
    assert shop.explain(fixed) is None
    assert repair_names(fixed, error, shop.schema()) is None
