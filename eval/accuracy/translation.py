"""Counts whether SQL that was written for SQLite returns SQLite's rows in another engine's dialect, and what differs."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from eval.accuracy.run import AccuracyBar
from eval.datasets.official import Example
from eval.scoring.run_query import QueryFailedError, Row, comparable, opened_copy, run_sqlite
from eval.scoring.spider_rules import order_matters, spider_match
from tools.databases.database import Database
from tools.result import Limits, QueryError
from tools.sql.from_sqlite import from_sqlite

_MAX_ROWS = 1_000_000
ALIKE, UNRUNNABLE = "alike", "not run by SQLite either"


@dataclass(frozen=True, slots=True)
class TranslationCheck:
    """Of `n` statements that SQLite runs, `alike` return its rows. kinds: how many of the others differ how; ids: which."""

    n: int
    alike: int
    kinds: dict[str, int]
    ids: dict[str, tuple[str, ...]]


def check_translation(
    statements: Sequence[tuple[Example, str]], engine: str, *, timeout_s: float = 30.0, progress: bool = True
) -> TranslationCheck:
    """Run each statement in SQLite, and its translation by `engine`; see `eval.scoring.run_query.opened_copy`."""
    found: list[tuple[str, str]] = []  # how it differs, and the question's id
    with AccuracyBar(len(statements), progress) as bar:
        for file, own in groupby(statements, key=lambda each: each[0].database):
            if file is None:
                continue
            with closing(opened_copy(file, engine)) as database:
                for example, sql in own:
                    kind = kind_of_difference(file, database, sql, timeout_s)
                    found += [(kind, example.id)] if kind != UNRUNNABLE else []
                    bar.show(len(found), [each == ALIKE for each, _ in found])
    counts = Counter(kind for kind, _ in found if kind != ALIKE)
    ids = {kind: tuple(number for each, number in found if each == kind) for kind in counts}
    return TranslationCheck(len(found), len(found) - counts.total(), dict(counts.most_common()), ids)


def kind_of_difference(file: Path, database: Database, sql: str, timeout_s: float) -> str:
    """How the rows of the translation differ from SQLite's, in a word or two."""
    try:
        rows = comparable(run_sqlite(str(file), sql, lenient=True))
    except QueryFailedError:
        return UNRUNNABLE
    try:
        translation = from_sqlite(sql, database.schema())
    except ValueError:
        return "not translated"
    outcome = database.execute(translation, Limits(timeout_s, _MAX_ROWS))
    if isinstance(outcome, QueryError):
        return f"error: {outcome.kind}"
    there, ordered = comparable(outcome.rows), order_matters(sql)
    if spider_match(rows, there, ordered):
        return ALIKE
    for kind, change in _CHANGES:
        if spider_match(change(rows), change(there), ordered):
            return kind
    if ordered and spider_match(rows, there, False):
        return "order of rows that tie"
    if "limit" in sql.casefold() and len(rows) == len(there):
        return "rows chosen among those that tie"
    return "other rows"


def _without_case(rows: Sequence[Row]) -> list[Row]:
    return [tuple(cell.casefold().rstrip() if isinstance(cell, str) else cell for cell in row) for row in rows]


def _as_texts(rows: Sequence[Row]) -> list[Row]:
    return [tuple(cell if cell is None else str(cell) for cell in row) for row in rows]


def _rounded(rows: Sequence[Row]) -> list[Row]:
    return [tuple(float(f"{cell:.4g}") if isinstance(cell, int | float) else cell for cell in row) for row in rows]


_CHANGES: tuple[tuple[str, Callable[[Sequence[Row]], list[Row]]], ...] = (
    ("case of texts", _without_case),
    ("numbers as texts", _as_texts),
    ("digits of numbers", _rounded),
)
