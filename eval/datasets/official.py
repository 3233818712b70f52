"""Reads benchmarks from their official files.

Reads Spider and BIRD as lists of examples from their official folder layouts. Runs no query.

Reads prompts that do not ask for SQL, from the published files (JSON Lines) of Spec-Bench, GSM8K and HumanEval.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoding.tokenizer import Tokenizer
from eval.scoring.spider_parse import UnreadableError, parse
from eval.scoring.spider_rules import SpiderSchema, hardness, load_schemas


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


# Spec-Bench (Xia et al., arXiv 2401.07851) counts the eight categories of MT-bench as one family.
_MT_BENCH = frozenset(("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"))


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt, and the family in whose row it is counted."""

    family: str
    text: str


def read_text_prompts(files: Sequence[Path], per_family: int) -> list[TextPrompt]:
    """At most `per_family` prompts of each family, evenly spaced; of a dialogue, the first turn. Raises DatasetError."""
    families: dict[str, list[TextPrompt]] = {}
    for file in files:
        for prompt in _read(file):
            families.setdefault(prompt.family, []).append(prompt)
    return [prompt for listed in families.values() for prompt in listed[:: -(-len(listed) // per_family)]]


def chat_prompt(tokenizer: Tokenizer, prompt: TextPrompt) -> str:
    """The prompt as a user's message in the model's own chat template."""
    return tokenizer.chat([{"role": "user", "content": prompt.text}])


def _read(file: Path) -> Iterator[TextPrompt]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read {file}: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            prompt = _prompt(json.loads(line))
        except ValueError:
            raise DatasetError(
                f"line {number} of {file} is no question of Spec-Bench (category, turns), GSM8K (question) or HumanEval "
                "(task_id, prompt)"
            ) from None
        yield prompt


def _prompt(entry: object) -> TextPrompt:
    """The prompt in a line's JSON. Raises ValueError for another layout."""
    match entry:
        case {"category": str(category), "turns": [str(turn), *_]}:
            return TextPrompt("mt_bench" if category in _MT_BENCH else category, turn)
        case {"task_id": str(), "prompt": str(code)}:
            return TextPrompt("human_eval", f"Complete this Python function.\n\n{code}")
        case {"question": str(question)}:
            return TextPrompt("gsm8k", question)
    raise ValueError("another layout")
