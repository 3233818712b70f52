"""Measures accuracy on one's own questions: a CSV file with a column `question` and a column `sql`, on one's own database.

An answer is right if its rows are those of the given SQL, in any order of columns, and in the given order of rows where that
SQL says ORDER BY (`eval.scoring.spider_rules`).
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.conversation import Answer
from eval.accuracy.summary import wilson_95
from eval.datasets.official import DatasetError
from eval.scoring.spider_rules import order_matters, spider_match
from tools.databases.database import Database
from tools.databases.files.encodings import as_utf8
from tools.result import Limits, OpenError, QueryError

Ask = Callable[[str, str], Answer]


@dataclass(frozen=True, slots=True)
class OwnQuestion:
    """`line` is its place in the file, from 2: the first line names the columns."""

    line: int
    question: str
    sql: str
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class OwnVerdict:
    line: int
    question: str
    right: bool
    expected_sql: str
    sql: str
    answer: str
    error: str
    total_ms: float


@dataclass(frozen=True, slots=True)
class OwnSummary:
    questions: int
    right: int
    share: float
    ci95: tuple[float, float]


def read_questions(path: Path) -> list[OwnQuestion]:
    """The questions of a CSV file, in whatever encoding and with whatever separator a spreadsheet wrote it. Raises
    DatasetError."""
    try:
        with as_utf8(path) as (readable, _), readable.open(newline="", encoding="utf-8-sig") as file:
            separator = max(",;\t|", key=file.readline().count)
            file.seek(0)
            reader = csv.DictReader(file, delimiter=separator)
            columns = [name.strip().casefold() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, OpenError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"cannot read {path}: {error}") from error
    if not {"question", "sql"} <= set(columns):
        raise DatasetError(
            f"{path} needs a first line that names the columns question and sql; evidence may be a third"
        )
    found = [
        OwnQuestion(line, row["question"] or "", row["sql"] or "", row.get("evidence") or "")
        for line, row in rows
        if any(row.values())
    ]
    incomplete = next((each.line for each in found if not each.question.strip() or not each.sql.strip()), None)
    if incomplete or not found:
        told = f"line {incomplete} lacks its question or its SQL" if incomplete else "there are no questions"
        raise DatasetError(f"{path}: {told}")
    return found


def judge(questions: Sequence[OwnQuestion], database: Database, limits: Limits, ask: Ask) -> Iterator[OwnVerdict]:
    """A verdict for each question. Raises DatasetError for SQL of the file that does not run, before anything is asked."""
    expected = []
    for each in questions:
        outcome = database.execute(each.sql, limits)
        if isinstance(outcome, QueryError):
            raise DatasetError(f"line {each.line}: its SQL does not run: {outcome.message}")
        expected.append(outcome.rows)
    for each, rows in zip(questions, expected, strict=True):
        answer = ask(each.question, each.evidence)
        right = answer.error is None and spider_match(
            rows, [tuple(row) for row in answer.rows], order_matters(each.sql)
        )
        error = answer.error["message"] if answer.error else ""
        yield OwnVerdict(
            each.line, each.question, right, each.sql, answer.sql or "", answer.answer, error, answer.total_ms
        )


def summary(verdicts: Sequence[OwnVerdict]) -> OwnSummary:
    """How many are right, with a 95 % interval (Wilson)."""
    right, count = sum(each.right for each in verdicts), len(verdicts)
    low, high = wilson_95(right, count) or (0.0, 1.0)
    return OwnSummary(count, right, right / count if count else 0.0, (low, high))
