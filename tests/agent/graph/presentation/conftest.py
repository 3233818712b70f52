"""A shop whose tables have keys, names in several forms, dates, years and prices."""

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from agent.presentation.present import present
from agent.presentation.shown import Shown
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Result

STATEMENTS = """
CREATE TABLE genres (genre_id INTEGER PRIMARY KEY, name VARCHAR);
CREATE TABLE people (person_id INTEGER PRIMARY KEY, first_name VARCHAR, last_name VARCHAR, manager_id INTEGER,
                     FOREIGN KEY (manager_id) REFERENCES people (person_id));
CREATE TABLE albums (album_id INTEGER PRIMARY KEY, title VARCHAR, genre_id INTEGER, person_id INTEGER, released INTEGER,
                     price DECIMAL(8, 2), sold_on TIMESTAMP,
                     FOREIGN KEY (genre_id) REFERENCES genres (genre_id),
                     FOREIGN KEY (person_id) REFERENCES people (person_id));
INSERT INTO genres VALUES (1, 'Jazz'), (2, 'Rock'), (3, '[bold]');
INSERT INTO people VALUES (1, 'Ada', 'Moss', NULL);
INSERT INTO people VALUES (2, 'Bo', 'Lind', 1), (3, 'Cy', 'Ruiz', 1);
INSERT INTO albums VALUES (1, 'One', 1, 2, 2010, 9.50, '2024-01-02'), (2, 'Two', 1, 2, 2011, 12.25, '2024-01-03 10:30:00'),
    (3, 'Three', 2, 3, 2010, 1234.00, NULL), (4, 'Four', 1, NULL, 1999, 20.00, '2024-05-06');
"""
Explain = Callable[[str], Shown]


BY_GENRE = "FROM albums JOIN genres ON albums.genre_id = genres.genre_id GROUP BY genres.name"


@pytest.fixture(scope="session")
def shop_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("shop")) / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(STATEMENTS)
    return path


@pytest.fixture(scope="session")
def shop(shop_file: Path) -> Iterator[Database]:
    database = open_database(shop_file)
    yield database
    database.close()


@pytest.fixture
def explain(shop: Database) -> Explain:
    """What is shown of a statement's result."""

    def shown(sql: str) -> Shown:
        result = shop.execute(sql)
        assert isinstance(result, Result), result
        return present(result, sql, shop.schema(), shop.execute)

    return shown
