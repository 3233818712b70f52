"""Reads WikiSQL's training file: one nameless table a line, with its columns and its questions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.datasets.official import DatasetError


@dataclass(frozen=True, slots=True)
class WikiColumn:
    """A column: its header in lower case, whether it holds numbers, and the values that questions mention."""

    name: str
    numeric: bool
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WikiQuestion:
    """A question: `aggregate` (COUNT, SUM, AVG, MIN, MAX or "") of `select` where all (column, operator, value) hold."""

    text: str
    select: str
    aggregate: str
    conditions: tuple[tuple[str, str, str], ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.select, *(column for column, _, _ in self.conditions)))


@dataclass(frozen=True, slots=True)
class WikiTable:
    """A table without a name; `id` is WikiSQL's."""

    id: str
    columns: tuple[WikiColumn, ...]
    questions: tuple[WikiQuestion, ...]

    def column(self, name: str) -> WikiColumn:
        """The column of that header."""
        return next(column for column in self.columns if column.name == name)


def load_wikisql(data: Path) -> list[WikiTable]:
    """The tables of `wikisql/train.jsonl`, in its order; none if the folder is not there. Raises DatasetError."""
    file = data / "wikisql" / "train.jsonl"
    if not file.is_file():
        return []
    try:
        return [_table(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{file} is not WikiSQL with a table on each line ({error!r})") from error


def _table(entry: Mapping[str, Any]) -> WikiTable:
    columns = (WikiColumn(c["name"], c["type"] == "number", tuple(c["values"])) for c in entry["columns"])
    questions = (
        WikiQuestion(
            " ".join(q["question"].split()),
            q["select"],
            q["aggregate"] or "",
            tuple((column, operator, str(value)) for column, operator, value in q["conditions"]),
        )
        for q in entry["questions"]
    )
    return WikiTable(entry["table"], tuple(columns), tuple(questions))
