"""Spider's dev questions and databases, for tests that measure on them. Skips where the data is not next to the project."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from tools.databases.database import Database
from tools.databases.open_database import open_database

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "spider"


@dataclass(frozen=True, slots=True)
class Question:
    """One dev question; its gold SQL is SQLite's."""

    db_id: str
    text: str
    gold: str


@cache
def questions() -> tuple[Question, ...]:
    """The 972 dev questions whose database is there (all but wta_1's)."""
    if not FOLDER.is_dir():
        pytest.skip(f"no Spider data in {FOLDER}")
    entries = json.loads((FOLDER / "dev.json").read_text(encoding="utf-8"))
    every = (Question(entry["db_id"], entry["question"], entry["query"]) for entry in entries)
    return tuple(question for question in every if sqlite_file(question.db_id).exists())


def sqlite_file(db_id: str) -> Path:
    return FOLDER / "database" / db_id / f"{db_id}.sqlite"


@cache
def database(db_id: str, engine: Literal["auto", "sqlite"]) -> Database:
    """The database, opened once per process: "auto" is DuckDB."""
    return open_database(sqlite_file(db_id), engine=engine)


def gold_rows(db_id: str, sql: str) -> list[tuple[object, ...]]:
    """What the Python driver's SQLite itself answers. Raises sqlite3.Error."""
    with closing(sqlite3.connect(f"file:{sqlite_file(db_id)}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda raw: raw.decode(errors="ignore")
        return connection.execute(sql).fetchall()
