"""Descriptions of other programs in a knowledge folder: what is taken can be used, and what is left is said."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.prompts.descriptions import take
from agent.prompts.knowledge import KnowledgeError, read_knowledge
from app.cli import app
from tools.databases.annotations import AnnotatedDatabase
from tools.databases.database import Database
from tools.databases.open_database import open_database

COLUMNS = {
    "customer_id": {"name": "customer_id", "description": "Who bought"},
    "gone": {"name": "gone", "description": "x"},
}
MANIFEST = {
    "metadata": {"dbt_schema_version": "https://schemas.getdbt.com/dbt/manifest/v12.json"},
    "nodes": {
        "model.shop.orders": {
            "resource_type": "model",
            "name": "orders",
            "alias": "orders",
            "description": "One row\nper purchase",
            "columns": COLUMNS,
        },
        "test.shop.relationships_orders": {
            "resource_type": "test",
            "attached_node": "model.shop.orders",
            "test_metadata": {
                "name": "relationships",
                "kwargs": {
                    "to": "ref('customers')",
                    "field": "id",
                    "column_name": "customer_id",
                    "model": "ref('orders')",
                },
            },
        },
        "test.shop.unique": {"resource_type": "test", "test_metadata": {"name": "unique", "kwargs": {}}},
    },
    "sources": {},
    "semantic_models": {"s": {"measures": [{"name": "amount", "agg": "sum", "expr": "amount_cents"}]}},
    "metrics": {
        "m": {
            "name": "revenue",
            "label": "Revenue",
            "description": "What was paid",
            "type": "simple",
            "type_params": {"measure": {"name": "amount"}},
        },
        "r": {
            "name": "basket",
            "type": "ratio",
            "type_params": {"numerator": {"name": "revenue"}, "denominator": {"name": "orders"}},
        },
        "n": {"name": "nothing", "type": "derived", "type_params": {}},
    },
}
CATALOG = {
    "metadata": {"dbt_schema_version": "https://schemas.getdbt.com/dbt/catalog/v1.json"},
    "nodes": {
        "model.shop.customers": {
            "metadata": {"name": "customers", "comment": None},
            "columns": {"ID": {"name": "id", "comment": "Number"}},
        }
    },
}
OSSIE = """
name: shop
datasets:
  - name: sales
    source: db.main.orders
    description: Purchases
    fields:
      - {name: buyer, expression: {dialects: [{dialect: ANSI_SQL, expression: customer_id}]}, description: Who bought}
      - {name: euros, expression: {dialects: [{dialect: ANSI_SQL, expression: amount_cents / 100.0}]}, description: In euros}
  - {name: people, source: db.main.customers}
relationships:
  - {name: x, from: sales, to: people, from_columns: [customer_id], to_columns: [id]}
metrics:
  - name: total_sales
    expression: {dialects: [{dialect: DUCKDB, expression: SUM(amount_cents)}]}
    ai_context: {synonyms: [turnover]}
"""
PACKAGE = {
    "resources": [
        {
            "name": "sales",
            "path": "data/orders.csv",
            "title": "Purchases",
            "schema": {
                "fields": [{"name": "customer_id", "title": "Who bought"}, {"name": "amount_cents"}],
                "foreignKeys": [{"fields": "customer_id", "reference": {"resource": "people", "fields": "id"}}],
            },
        },
        {"name": "people", "path": ["customers.csv"], "schema": "people.json"},
    ]
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);"
        "CREATE TABLE orders (order_id INTEGER, customer_id INTEGER, amount_cents INTEGER);"
    )
    connection.close()
    return path


def taken(shop: Path, name: str, text: str) -> tuple[Path, list[str], Database]:
    file, folder = shop.parent / name, shop.parent / "knowledge"
    file.write_text(text, encoding="utf-8")
    database = open_database(shop, engine="sqlite")
    _, left = take(file, folder, database.schema())
    return folder, left, AnnotatedDatabase(database, read_knowledge(folder).annotations)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("manifest.json", json.dumps(MANIFEST)),
        ("shop.yaml", OSSIE),
        ("models.yaml", "semantic_model:\n  - " + OSSIE.strip().replace("\n", "\n    ")),
        ("datapackage.json", json.dumps(PACKAGE)),
    ],
)
def test_what_a_file_says_is_in_the_schema_that_prompts_show(shop: Path, name: str, text: str) -> None:
    """A column that the database lacks was once an error of every later command with the folder."""
    folder, _, database = taken(shop, name, text)
    orders = database.schema().table("orders")
    assert orders and orders.column("customer_id").comment == "Who bought"  # type: ignore[union-attr]
    assert [(key.columns, key.ref_table) for key in orders.foreign_keys] == [(("customer_id",), "customers")]
    assert "- orders: table orders, " in (folder / "terms.md").read_text(encoding="utf-8")
    database.close()


def test_metrics_and_what_is_left(shop: Path) -> None:
    folder, left, database = taken(shop, "manifest.json", json.dumps(MANIFEST))
    known = read_knowledge(folder)
    assert known.about("What was the revenue?") == ("Revenue: What was paid; SUM(amount_cents)",)
    assert known.about("What is the basket?") == ("basket: revenue / orders",)
    assert left == [
        "1 descriptions of columns that the database has not, or hides",
        "1 names of metrics.md that the folder has, or without a meaning",
        "1 nodes of the kind test (unique)",
    ]
    database.close()


def test_synonyms_are_names_of_a_metric(shop: Path) -> None:
    folder, _, database = taken(shop, "shop.yaml", OSSIE)
    assert read_knowledge(folder).about("What was the turnover?") == ("turnover: SUM(amount_cents)",)
    database.close()


def test_a_person_s_own_lines_stay(shop: Path) -> None:
    folder = shop.parent / "knowledge"
    folder.mkdir()
    (folder / "columns.md").write_text("- orders.customer_id: The one who pays", encoding="utf-8")
    for _ in range(2):
        _, left, database = taken(shop, "manifest.json", json.dumps(MANIFEST))
        database.close()
    assert (folder / "columns.md").read_text(encoding="utf-8").splitlines() == [
        "- orders.customer_id: The one who pays"
    ]
    assert "1 descriptions of columns that the folder describes" in left
    assert (folder / "relations.md").read_text(encoding="utf-8").count("->") == 1


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("a.json", {"nodes": {}}, "none of dbt's"),
        ("a.json", {"resources": [{"path": "x"}]}, "has not the form"),
        (
            "a.json",
            {"metadata": {"dbt_schema_version": "x"}, "nodes": {"m": {"resource_type": "model"}}},
            "has not the form",
        ),
        ("a.json", [], "has not the form"),
    ],
)
def test_a_file_of_another_form(shop: Path, name: str, given: Any, says: str) -> None:
    with pytest.raises(KnowledgeError, match=says):
        taken(shop, name, json.dumps(given))


def test_on_the_command_line(shop: Path) -> None:
    (shop.parent / "catalog.json").write_text(json.dumps(CATALOG), encoding="utf-8")
    (shop.parent / "broken.yaml").write_text("a: [", encoding="utf-8")
    folder = shop.parent / "notes"
    given = ["learn", str(folder), "--db", str(shop), "--from"]
    done = CliRunner().invoke(app, [*given, str(shop.parent / "catalog.json")])
    assert done.exit_code == 0 and "columns.md: 1 lines" in done.stdout
    assert (folder / "columns.md").read_text(encoding="utf-8") == "- customers.id: Number\n"
    broken = CliRunner().invoke(app, [*given, str(shop.parent / "broken.yaml")])
    assert broken.exit_code == 2 and "cannot read" in broken.stderr and broken.stderr.count("\n") == 1
