"""Reads Spider and BIRD as lists of examples from their official folder layouts. Runs no query."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.scoring.spider.clauses import UnreadableError
from eval.scoring.spider.exact_match import SpiderSchema, load_schemas
from eval.scoring.spider.hardness import hardness
from eval.scoring.spider.parse import parse


@dataclass(frozen=True, slots=True)
class Example:
    """One question. `id` is its position in Spider's file (from "0"), or BIRD's `question_id`.

    `difficulty` is Spider's hardness (easy, medium, hard, extra; "" if its gold query cannot be parsed) or BIRD's own label.
    `database` is None if the SQLite file is missing. `history` holds the earlier questions of the conversation, each with its
    gold SQL in SQLite's dialect.
    """

    id: str
    db_id: str
    question: str
    gold: str
    evidence: str = ""
    difficulty: str = ""
    database: Path | None = None
    history: tuple[tuple[str, str], ...] = ()

    @property
    def executable(self) -> bool:
        """Whether the question's database is present."""
        return self.database is not None


class DatasetError(Exception):
    """The folder does not have the benchmark's layout; the message is one line that says what is missing."""


def load_spider(data: Path) -> list[Example]:
    """Read Spider's dev part. `data` holds dev.json, tables.json and database/DB/DB.sqlite. Raises `DatasetError`."""
    entries = _read_json(data / "dev.json", "Spider's folder holds dev.json, tables.json and database/")
    schemas = load_schemas(_existing(data / "tables.json", "Spider's folder holds dev.json, tables.json and database/"))
    return [
        Example(
            id=str(index),
            db_id=entry["db_id"],
            question=entry["question"],
            gold=entry["query"],
            difficulty=spider_difficulty(entry["query"], schemas.get(entry["db_id"])),
            database=database_file(data / "database", entry["db_id"]),
        )
        for index, entry in enumerate(entries)
    ]


def load_bird(data: Path) -> list[Example]:
    """Read BIRD. `data` holds dev.json and dev_databases/DB/DB.sqlite, or is mini-dev, with mini_dev_sqlite.json instead.

    A folder that contains such a folder as dev/ or MINIDEV/ is accepted too, and a mini-dev without databases uses those of
    the dev/ beside it. Raises `DatasetError`.
    """
    folder = next((f for f in (data, data / "dev", data / "MINIDEV") if _bird_file(f)), data)
    file = _bird_file(folder) or folder / "dev.json"
    databases = next(
        (d for d in (folder / "dev_databases", folder.parent / "dev" / "dev_databases") if d.is_dir()),
        folder / "dev_databases",
    )
    return [
        Example(
            id=str(entry.get("question_id", index)),
            db_id=entry["db_id"],
            question=entry["question"],
            gold=entry["SQL"],
            evidence=entry.get("evidence", ""),
            difficulty=entry.get("difficulty", ""),
            database=database_file(databases, entry["db_id"]),
        )
        for index, entry in enumerate(_read_json(file, "BIRD's folder holds dev.json and dev_databases/"))
    ]


def _bird_file(folder: Path) -> Path | None:
    return next((file for name in ("dev.json", "mini_dev_sqlite.json") if (file := folder / name).is_file()), None)


def database_file(folder: Path, db_id: str) -> Path | None:
    """FOLDER/DB/DB.sqlite; None if it does not exist."""
    file = folder / db_id / f"{db_id}.sqlite"
    return file if file.is_file() else None


def spider_difficulty(gold: str, schema: SpiderSchema | None) -> str:
    """Spider's hardness; "" if the gold query cannot be parsed."""
    try:
        return hardness(parse(gold, schema.tables)) if schema else ""
    except UnreadableError:
        return ""


def _existing(file: Path, layout: str) -> Path:
    if not file.is_file():
        raise DatasetError(f"{file} is not there: {layout}")
    return file


def _read_json(file: Path, layout: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(_existing(file, layout).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DatasetError(f"{file} is not JSON: {error}") from error
    if not isinstance(entries, list):
        raise DatasetError(f"{file} is not a list of questions: {layout}")
    return entries
