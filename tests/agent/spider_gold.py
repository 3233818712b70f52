"""Spider's and BIRD's gold SQL with their schemas, from the shared data next to the checkout."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tools.schema import Column, Schema, Table

DATA = Path(__file__).parents[3] / "shared" / "data"
FILES = {
    "spider train": ("spider/train_spider.json", "spider/train_others.json"),
    "spider dev": ("spider/dev.json",),
    "bird superhero": ("bird/dev/dev.json",),
}


@cache
def schemas(file: str) -> dict[str, Schema]:
    """Schemas of a `tables.json`, by database."""
    return {entry["db_id"]: _schema(entry) for entry in _read(file)}


def gold(name: str) -> list[tuple[Schema, str]]:
    """Distinct queries with their schema, in a fixed order. Skips the test where the data are not there."""
    if not DATA.exists():
        pytest.skip(f"no benchmark data at {DATA}")
    bird = name.startswith("bird")
    known = schemas("bird/dev/dev_tables.json" if bird else "spider/tables.json")
    examples = [example for file in FILES[name] for example in _read(file)]
    pairs = {(e["db_id"], e["SQL" if bird else "query"]) for e in examples}
    return [(known[db], sql) for db, sql in sorted(pairs) if not bird or db == "superhero"]


def _read(file: str) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads((DATA / file).read_text())
    return content


def _schema(entry: dict[str, Any]) -> Schema:
    columns = list(zip(entry["column_names_original"], entry["column_types"], strict=True))
    tables = (
        Table(name, tuple(Column(column, kind) for (owner, column), kind in columns if owner == number))
        for number, name in enumerate(entry["table_names_original"])
    )
    return Schema(tuple(tables), "sqlite")
