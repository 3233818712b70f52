"""Reads the training questions of Spider, Spider-Syn and BIRD, and makes sure that no dev questions are among them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eval.datasets.official import DatasetError

Source = Literal["spider", "spider_syn", "bird"]

# Held out for choosing checkpoints, k and thresholds. Drawn by random.Random(3).sample from the 71 databases that hold rows,
# have 40 to 90 questions in Spider's training part and share no name with a dev database. They are enough to measure on (654
# questions, and their Spider-Syn rewordings), and so few that training does not suffer. The names are written out so that no
# change of code or data can move a question from one side to the other.
HELD_OUT_DATABASES = (
    "aircraft",
    "club_1",
    "csu_1",
    "flight_4",
    "inn_1",
    "product_catalog",
    "student_1",
    "tracking_software_problems",
    "voter_2",
    "wine_1",
)
# Their tables are empty in the published files, so that any two queries return the same.
WITHOUT_ROWS = ("academic", "geo", "imdb", "music_2", "restaurants", "scholar", "yelp")


@dataclass(frozen=True, slots=True)
class Question:
    """A training question. `id`: source and position in its file, `spider/12`; `gold`: SQL in SQLite's dialect."""

    id: str
    source: Source
    db_id: str
    text: str
    gold: str
    evidence: str = ""


def load_questions(data: Path) -> list[Question]:
    """Every training question under `data`, in the files' order. Raises DatasetError for a missing file or a dev question.

    `data` holds spider/, spider_syn/ and bird/ in their authors' layouts; bird/train is optional.
    """
    questions = spider_questions(data) + syn_questions(data)
    if (data / "bird" / "train").is_dir():
        bird = _entries(data / "bird" / "train" / "train.json")
        questions += [_question("bird", n, e, "question", "SQL") for n, e in enumerate(bird)]
    return unique(questions)


def spider_questions(data: Path) -> list[Question]:
    """Spider's training questions. Raises DatasetError."""
    entries = _entries(data / "spider" / "train_spider.json") + _entries(data / "spider" / "train_others.json")
    return [_question("spider", n, e, "question", "query") for n, e in enumerate(entries)]


def syn_questions(data: Path) -> list[Question]:
    """The questions of train_spider.json in Spider-Syn's wording. Raises DatasetError."""
    entries = _entries(data / "spider_syn" / "train_spider.json")
    return [_question("spider_syn", n, e, "SpiderSynQuestion", "query") for n, e in enumerate(entries)]


def unique(questions: Iterable[Question]) -> list[Question]:
    """The questions without repetitions, since Spider-Syn leaves some of Spider's unchanged."""
    return list({(q.db_id, q.text.casefold(), q.gold): q for q in reversed(list(questions))}.values())[::-1]


def synonym_questions(data: Path) -> list[tuple[str, str]]:
    """Spider's training questions outside the held-out databases, each with Spider-Syn's rewording."""
    entries = _entries(data / "spider_syn" / "train_spider.json")
    return [(e["SpiderQuestion"], e["SpiderSynQuestion"]) for e in entries if e["db_id"] not in HELD_OUT_DATABASES]


@dataclass(frozen=True, slots=True)
class DevParts:
    """What must never be trained on: databases and question texts of the dev parts."""

    db_ids: frozenset[str]
    texts: frozenset[str]


def load_dev(data: Path) -> DevParts:
    """The dev parts of Spider and, if present, BIRD."""
    files = [data / "spider" / "dev.json", data / "bird" / "dev" / "dev.json"]
    entries = [entry for file in files if file.exists() or file == files[0] for entry in _entries(file)]
    return DevParts(frozenset(e["db_id"] for e in entries), frozenset(_plain(e["question"]) for e in entries))


def without_dev(questions: Sequence[Question], dev: DevParts) -> tuple[list[Question], list[str]]:
    """The questions that share neither database name nor text with a dev part, and the ids of those left out.

    This also drops Spider's training database formula_1, which has the name and the data model of a dev database of BIRD.
    """
    out = {q.id for q in questions if q.db_id in dev.db_ids or _plain(q.text) in dev.texts}
    return [question for question in questions if question.id not in out], sorted(out)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(" ?.!")


def _question(source: Source, number: int, entry: dict[str, Any], text: str, sql: str) -> Question:
    words = (entry[text], entry[sql], entry.get("evidence", ""))
    question, gold, evidence = (" ".join(str(part).split()) for part in words)
    return Question(f"{source}/{number}", source, entry["db_id"], question, gold, evidence)


def _entries(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        raise DatasetError(f"{file} is not there: name the folder that holds spider/, spider_syn/ and bird/")
    entries: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return entries
