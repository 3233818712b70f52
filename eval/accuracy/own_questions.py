"""Measures accuracy on one's own questions: a file (CSV, JSON Lines, YAML) with `question` and `sql`, on one's own database.

An answer is right if its rows are those of the given SQL, in any order of columns, and in the given order of rows where that
SQL says ORDER BY (`eval.scoring.spider_rules`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.conversation import Answer
from agent.question_tests import TestsError, entries_of
from eval.accuracy.summary import wilson_95
from eval.datasets.official import DatasetError
from eval.scoring.spider_rules import order_matters, spider_match
from tools.databases.database import Database
from tools.result import Limits, QueryError

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
    """The questions of a file. Raises DatasetError."""
    try:
        entries = list(entries_of(path))
    except TestsError as error:
        raise DatasetError(str(error)) from error
    if not all({"question", "sql"} <= set(entry) for _, entry in entries[:1]):
        raise DatasetError(
            f"{path} needs a first line that names the columns question and sql; evidence may be a third"
        )
    found = [
        OwnQuestion(line, *(str(entry.get(name) or "") for name in ("question", "sql", "evidence")))
        for line, entry in entries
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
