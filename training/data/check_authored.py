"""Checks authored databases by running them, and counts how different their questions are.

A fault names the folder and the line, never the question, so that the sealed part can be checked without being read.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp

from eval.datasets.official import DatasetError, Part, json_lines, made_database, part_of

PARTS: tuple[Part, ...] = ("train", "choosing", "sealed")
MOST_STEPS = 50  # million instructions of SQLite that a statement may take
_WORD = re.compile(r"[a-z]+")


@dataclass(slots=True)
class Counts:
    """What the databases hold. Skeletons are SQL without names and literals; `column_words` are words of questions that are
    words of the database's columns or tables, too."""

    databases: int = 0
    questions: int = 0
    unanswerable: int = 0
    dialogues: int = 0
    turns: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    turn_kinds: Counter[str] = field(default_factory=Counter)
    skeletons: Counter[str] = field(default_factory=Counter)
    beginnings: Counter[str] = field(default_factory=Counter)
    words: int = 0
    column_words: int = 0

    def summary(self) -> dict[str, Any]:
        """The counts as JSON values; distinct things are counted, not listed."""
        asked = max(self.questions, 1)
        return {
            "databases": self.databases,
            "questions": self.questions,
            "unanswerable": self.unanswerable,
            "dialogues": self.dialogues,
            "turns": self.turns,
            "kinds": dict(self.kinds.most_common()),
            "turn_kinds": dict(self.turn_kinds.most_common()),
            "skeletons": len(self.skeletons),
            "first_three_words": len(self.beginnings),
            "words_a_question": round(self.words / asked, 1),
            "column_words": round(self.column_words / max(self.words, 1), 3),
        }


def check(data: Path, report: Callable[[str], None]) -> tuple[list[str], Counts]:
    """The faults of every part's databases, and counts. `report` is told the progress. Raises DatasetError."""
    names = [name for part in PARTS for name in part_of(data, part)]
    faults = [f"{name}: in two parts" for name, times in Counter(names).items() if times > 1]
    faults += [
        f"{each.name}: in no part" for each in sorted(data.iterdir()) if each.is_dir() and each.name not in names
    ]
    counts = Counts()
    for number, name in enumerate(names, 1):
        found = list(_faults(data / name, counts))
        faults += [f"{name}, {fault}" for fault in found]
        report(f"{number} of {len(names)}: {name}, {len(found)} faults")
    return faults, counts


def _faults(folder: Path, counts: Counts) -> Iterator[str]:
    counts.databases += 1
    try:
        with closing(sqlite3.connect(f"file:{made_database(folder)}?mode=ro", uri=True)) as database:
            known = _names(database)
            yield from _questions(json_lines(folder / "questions.jsonl"), database, known, counts)
            yield from _dialogues(json_lines(folder / "dialogues.jsonl"), database, counts)
    except (DatasetError, sqlite3.Error) as error:
        yield f"cannot be read: {error}"


def _questions(
    lines: list[dict[str, Any]], database: sqlite3.Connection, known: set[str], counts: Counts
) -> Iterator[str]:
    asked = set[str]()
    for number, line in enumerate(lines, 1):
        where, text = f"question {number}", str(line["question"])
        counts.questions += 1
        counts.unanswerable += not line["sql"]
        counts.kinds[line["kind"]] += 1
        counts.beginnings[" ".join(text.lower().split()[:3])] += 1
        words = _WORD.findall(text.lower())
        counts.words += len(words)
        counts.column_words += sum(word in known for word in words)
        if text.casefold() in asked:
            yield f"{where} is asked twice"
        asked.add(text.casefold())
        if len(line.get("paraphrases", ())) != 2:
            yield f"{where} needs two paraphrases"
        yield from _runs(where, line, database, counts)


def _dialogues(lines: list[dict[str, Any]], database: sqlite3.Connection, counts: Counts) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        counts.dialogues += 1
        for place, turn in enumerate(line["turns"], 1):
            where = f"dialogue {number}, turn {place}"
            counts.turns += 1
            counts.turn_kinds[turn["kind"]] += 1
            if turn["continues"] and not 0 < turn["continues"] < place:
                yield f"{where} continues no earlier turn"
            yield from _runs(where, turn, database, counts)


def _runs(where: str, line: Mapping[str, Any], database: sqlite3.Connection, counts: Counts) -> Iterator[str]:
    """Whether the SQL runs and finds something, unless nothing is what it should find."""
    if not (sql := line["sql"]):
        return
    try:
        counts.skeletons[_skeleton(sql)] += 1
        rows = _rows(sql, database)
    except (sqlite3.Error, sqlglot.errors.SqlglotError) as error:
        yield f"{where}: its SQL does not run: {str(error).splitlines()[0]}"
        return
    if not line.get("empty") and not any(value is not None for row in rows for value in row):
        yield f"{where}: its SQL finds nothing"


def _rows(sql: str, database: sqlite3.Connection) -> list[tuple[Any, ...]]:
    steps = iter(range(MOST_STEPS))
    database.set_progress_handler(lambda: next(steps, None) is None, 1_000_000)
    return database.execute(sql).fetchmany(5000)


def _skeleton(sql: str) -> str:
    tree = sqlglot.parse_one(sql, read="sqlite")
    for each in list(tree.find_all(exp.Identifier, exp.Literal)):
        each.replace(exp.to_identifier("_"))
    return tree.sql("sqlite")


def _names(database: sqlite3.Connection) -> set[str]:
    """The words in the names of tables and columns."""
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    columns = [row[1] for name in tables for row in database.execute("SELECT * FROM pragma_table_info(?)", (name,))]
    return {
        word
        for name in (*tables, *columns)
        for word in _WORD.findall(re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
    }
