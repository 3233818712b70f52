"""Relations that a person declares stand in the schema, and change nothing else."""

import sqlite3
from pathlib import Path

import pytest

from agent.prompts.knowledge import KnowledgeError, read_knowledge
from tools.databases.open_database import open_database
from tools.databases.reading.declared_relations import Relation, with_relations
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
    relations = read_knowledge(tmp_path).relations
    assert relations == (Relation(("Sale", "buyer"), ("client", "id")),)
    database = with_relations(open_database(shop), relations)
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
        with_relations(database, [Relation(("sale", "nobody"), ("client", "id"))])
    assert with_relations(database, ()) is database
    database.close()
    (tmp_path / "relations.md").write_text("- sale.buyer = client.id\n")
    with pytest.raises(KnowledgeError, match=r"line 1: write"):
        read_knowledge(tmp_path)
