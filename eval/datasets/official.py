"""Reads benchmarks from their official files.

Reads prompts that do not ask for SQL, from the published files (JSON Lines) of Spec-Bench, GSM8K and HumanEval.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from decoding.tokenizer import Tokenizer
from eval.scoring.spider_rules import hardness


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
    """Read Spider's dev part. `data` holds dev.json and database/DB/DB.sqlite. Raises `DatasetError`."""
    entries = _read_json(data / "dev.json", "Spider's folder holds dev.json and database/")
    return [
        Example(
            id=str(index),
            db_id=entry["db_id"],
            question=entry["question"],
            gold=entry["query"],
            difficulty=hardness(entry["query"]) or "",
            database=database_file(data / "database", entry["db_id"]),
        )
        for index, entry in enumerate(entries)
    ]


def load_bird(data: Path) -> list[Example]:
    """Read BIRD. `data` holds dev.json and dev_databases/DB/DB.sqlite, or is mini-dev, with mini_dev_sqlite.json instead.

    A folder that contains such a folder as dev/ or MINIDEV/ is accepted too, and a mini-dev without databases uses those of
    the dev/ next to it. Raises `DatasetError`.
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


def _read_json(file: Path, layout: str) -> list[dict[str, Any]]:
    if not file.is_file():
        raise DatasetError(f"{file} is not there: {layout}")
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
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
    return _read_json(file, "name the folder that holds spider/, spider_syn/ and bird/")
