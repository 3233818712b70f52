"""Relations and descriptions that a person gives stand in the schema, and change nothing else."""

import sqlite3
from pathlib import Path

import pytest

from agent.prompts.knowledge import KnowledgeError, read_knowledge
from tools.databases.annotations import Annotations, Relation, with_annotations
from tools.databases.open_database import open_database
from tools.result import OpenError, Result
from tools.schema import ForeignKey


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE client (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("CREATE TABLE sale (buyer INTEGER, total REAL)")
        connection.execute("INSERT INTO client VALUES (1, 'Ada')")
        connection.execute("INSERT INTO sale VALUES (1, 2.5)")
    connection.close()
    return path


def test_a_declared_relation_is_a_foreign_key(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "relations.md").write_text("# Relations\n\n- Sale.buyer -> client.id\n")
    annotations = read_knowledge(tmp_path).annotations
    assert annotations.relations == (Relation(("Sale", "buyer"), ("client", "id")),)
    database = with_annotations(open_database(shop), annotations)
    sale = database.schema().table("sale")
    assert sale is not None
    assert sale.foreign_keys == (ForeignKey(("buyer",), "client", ("id",)),)
    outcome = database.execute("SELECT total FROM sale")
    assert isinstance(outcome, Result)
    assert outcome.rows == ((2.5,),)
    assert database.explain("DELETE FROM sale") is not None
    database.close()


def test_a_relation_with_an_unknown_column_is_one_line(shop: Path, tmp_path: Path) -> None:
    database = open_database(shop)
    with pytest.raises(OpenError, match=r"sale\.nobody, which is not"):
        with_annotations(database, Annotations((Relation(("sale", "nobody"), ("client", "id")),)))
    assert with_annotations(database, Annotations()) is database
    database.close()
    (tmp_path / "relations.md").write_text("- sale.buyer = client.id\n")
    with pytest.raises(KnowledgeError, match=r"line 1: write"):
        read_knowledge(tmp_path)


def test_a_description_takes_the_place_of_the_comment(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "columns.md").write_text("Money:\n- SALE.Total: price in euros, with tax\n")
    database = with_annotations(open_database(shop), read_knowledge(tmp_path).annotations)
    sale = database.schema().table("sale")
    assert sale is not None
    assert [column.comment for column in sale.columns] == ["", "price in euros, with tax"]
    database.close()


def test_a_description_of_nothing_is_one_line(shop: Path, tmp_path: Path) -> None:
    database = open_database(shop)
    with pytest.raises(OpenError, match=r"description is given of sale\.nobody, which is not"):
        with_annotations(database, Annotations(descriptions={("sale", "nobody"): "who"}))
    database.close()
    (tmp_path / "columns.md").write_text("- total: without its table\n")
    with pytest.raises(KnowledgeError, match=r"line 1: write `- table\.column: what"):
        read_knowledge(tmp_path)
