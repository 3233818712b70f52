"""BIRD's descriptions stand in the schema of a question's database."""

import sqlite3
from pathlib import Path

import pytest

from eval.accuracy.predict import FOLDER, open_described


@pytest.fixture
def heroes(tmp_path: Path) -> Path:
    path = tmp_path / "heroes.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE Hero (id INTEGER, h_cm INTEGER)")
        connection.execute("INSERT INTO Hero VALUES (1, 180)")
    connection.close()
    return path


def test_descriptions_beside_the_file(heroes: Path) -> None:
    folder = heroes.parent / FOLDER
    folder.mkdir()
    (folder / "hero.csv").write_bytes(
        b"\xef\xbb\xbforiginal_column_name,column_name,column_description,data_format,value_description\n"
        b"id,,,integer,\n"
        b'h_cm ,height,the height of the hero ,integer,"NULL means\nunknown \x96 or none"\n'
        b"gone,,a column that the file lacks,text,\n"
    )
    (folder / "villain.csv").write_text("original_column_name,column_description\nid,who\n")
    for engine in ("sqlite", "duckdb"):
        database = open_described(heroes, engine)
        (table,) = database.schema().tables
        assert [column.comment for column in table.columns] == [
            "",
            "the height of the hero NULL means\nunknown � or none",
        ]
        database.close()


def test_without_descriptions(heroes: Path) -> None:
    database = open_described(heroes, "sqlite")
    assert [column.comment for column in database.schema().tables[0].columns] == ["", ""]
    database.close()
