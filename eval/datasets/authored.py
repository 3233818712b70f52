"""Authored databases, their questions and dialogues: read, packed, and checked by running them.

A line of `PART.jsonl.xz` or `PART-NAME.jsonl.xz` is a database; PART is train, choosing or sealed.

    {"name": ..., "build": ..., "questions": [...], "dialogues": [...]}

    build       Python that defines build(path), which writes a SQLite file; seeded, standard library only
    questions   {"question", "sql", "kind", "paraphrases": [two], "evidence"?, "empty"?} each
    dialogues   {"turns": [{"question", "sql", "kind", "continues"}]} each

`sql` is SQLite's; "" marks a question that the data cannot answer. Training reads `train` alone, thresholds and stopping are
chosen on `choosing`, and `sealed` is read by commands only: a fault names the database and the line, never the question.
"""

import hashlib
import json
import lzma
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import sqlglot
from sqlglot import exp

from decoding.checkpoints.cache_folder import cache_root
from eval.datasets.official import DatasetError, Example

Part = Literal["train", "choosing", "sealed"]
MOST_STEPS = 50  # million instructions of SQLite that a statement may take
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class Authored:
    """A database's script with its questions and dialogues."""

    name: str
    build: str
    questions: Sequence[dict[str, Any]]
    dialogues: Sequence[dict[str, Any]]


def read_authored(data: Path, part: Part) -> list[Authored]:
    """The databases of a part. Raises DatasetError."""
    found = (file for file in data.glob(f"{part}*.jsonl*") if re.match(rf"{part}[.-]", file.name))
    files = sorted(found, key=lambda file: file.name.partition(".")[0])
    if not any(data.glob("*.jsonl*")):
        raise DatasetError(f"{data} holds no authored data: train.jsonl.xz, choosing.jsonl.xz or sealed.jsonl.xz")
    return [Authored(**line) for file in files for line in json_lines(file)]


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a file, one a line; packed with xz if its name says so. Raises DatasetError for a line that is none."""
    try:
        text = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
    except (OSError, lzma.LZMAError) as error:
        raise DatasetError(f"cannot read {file}: {error}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise DatasetError(f"{file}, line {number} is not JSON: {error}") from None
    return found


def pack(folders: Path, file: Path) -> int:
    """Write the databases of folders NAME/{build,questions.jsonl,dialogues.jsonl} into one file; returns how many there are.
    Raises DatasetError."""
    names = sorted(script.parent for script in folders.glob("*/build"))
    if not names:
        raise DatasetError(
            f"{folders} has no folder of a database: NAME/build, NAME/questions.jsonl, NAME/dialogues.jsonl"
        )
    lines = [
        {
            "name": folder.name,
            "build": (folder / "build").read_text(encoding="utf-8"),
            "questions": json_lines(folder / "questions.jsonl"),
            "dialogues": json_lines(folder / "dialogues.jsonl"),
        }
        for folder in names
    ]
    file.write_bytes(lzma.compress(_lines(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    return len(lines)


def unpack(file: Path, folders: Path) -> int:
    """Write what `pack` reads; returns how many databases there are. Raises DatasetError."""
    every = [Authored(**line) for line in json_lines(file)]
    for each in every:
        folder = folders / each.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "build").write_text(each.build, encoding="utf-8")
        (folder / "questions.jsonl").write_text(_lines(each.questions), encoding="utf-8")
        (folder / "dialogues.jsonl").write_text(_lines(each.dialogues), encoding="utf-8")
    return len(every)


def _lines(objects: Sequence[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in objects)


def load_authored(data: Path, part: Part) -> list[Example]:
    """A part's questions that the data can answer, by database; `difficulty` is their kind. Raises DatasetError."""
    return [
        Example(
            f"{each.name}/{number}",
            each.name,
            line["question"],
            line["sql"],
            line.get("evidence", ""),
            line["kind"],
            file,
        )
        for each in read_authored(data, part)
        for file in (made_database(each),)
        for number, line in enumerate(each.questions, 1)
        if line["sql"]
    ]


def made_database(authored: Authored) -> Path:
    """The database, made once per version of its script in the cache."""
    version = hashlib.sha256(authored.build.encode()).hexdigest()[:12]
    file = cache_root() / "authored" / version / f"{authored.name}.sqlite"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f"{file.name}.{os.getpid()}.part")
        unfinished.unlink(missing_ok=True)
        try:
            script: dict[str, Any] = {"__name__": f"authored_{authored.name}"}
            exec(compile(authored.build, f"{authored.name}/build", "exec"), script)
            script["build"](str(unfinished))
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)
    return file


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
    every = [each for part in get_args(Part) for each in read_authored(data, part)]
    faults = [f"{name} is there twice" for name, times in Counter(each.name for each in every).items() if times > 1]
    counts = Counts()
    for number, each in enumerate(every, 1):
        found = list(_faults(each, counts))
        faults += [f"{each.name}, {fault}" for fault in found]
        report(f"{number} of {len(every)}: {each.name}, {len(found)} faults")
    return faults, counts


def _faults(authored: Authored, counts: Counts) -> Iterator[str]:
    counts.databases += 1
    try:
        with closing(sqlite3.connect(f"file:{made_database(authored)}?mode=ro", uri=True)) as database:
            yield from _questions(authored.questions, database, _names(database), counts)
            yield from _dialogues(authored.dialogues, database, counts)
    except sqlite3.Error as error:
        yield f"cannot be read: {error}"


def _questions(
    lines: Sequence[dict[str, Any]], database: sqlite3.Connection, known: set[str], counts: Counts
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


def _dialogues(lines: Sequence[dict[str, Any]], database: sqlite3.Connection, counts: Counts) -> Iterator[str]:
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
