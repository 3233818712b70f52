"""Rows for an invented schema, so that values are found as in a real database and no question's answer is empty."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from eval.datasets.wikisql.canonical import number_of, spoken
from eval.datasets.wikisql.schemas import Composition, Invented
from eval.datasets.wikisql.source import WikiColumn, WikiQuestion, WikiTable

Row = dict[str, str | float | None]  # by header
MORE_ROWS = 8  # rows that no question is about
MOST_POOLED = 40
FEW = 0.35  # probability that a column repeats a few values
AS_SPOKEN = 0.6  # probability that a cell has the upper and lower case of the question


class Pool:
    """Values of columns of the same header in all tables, to fill cells that no question mentions."""

    def __init__(self, tables: Iterable[WikiTable]) -> None:
        pooled: dict[tuple[str, bool], dict[str, None]] = defaultdict(dict)
        for table in tables:
            for column in table.columns:
                values = (value for value in column.values if not column.numeric or number_of(value))
                pooled[column.name, column.numeric].update(dict.fromkeys(values))
        self._values = {key: list(values)[:MOST_POOLED] for key, values in pooled.items()}

    def some(self, column: WikiColumn, rng: Random) -> list[str]:
        """Values for one table's column, to draw cells from: all, or a few that repeat; none if nothing is known."""
        known = self._values.get((column.name, column.numeric), [])
        return rng.sample(known, min(rng.randint(2, 4), len(known))) if rng.random() < FEW else known


def _number(text: str) -> float:
    number = float(number_of(text) or 0)
    return int(number) if number.is_integer() else number


@dataclass(frozen=True, slots=True)
class Cells:
    """A table's rows, and how the cells spell the values of its questions, by (header, value in lower case)."""

    rows: Sequence[Row]
    spelling: Mapping[tuple[str, str], str]


def cells(table: WikiTable, pool: Pool, rng: Random) -> Cells:
    """One row for each question, on which its conditions hold, and a few more, in random order."""
    spelling: dict[tuple[str, str], str] = {}
    for question in table.questions:
        for header, _, value in question.conditions:
            said = spoken(value, question.text) or value
            form = said if rng.random() < AS_SPOKEN else value
            spelling.setdefault((header, value.casefold()), form)
    values = {
        column.name: [spelling.get((column.name, value.casefold()), value) for value in pool.some(column, rng)]
        for column in table.columns
    }
    asked = [*table.questions, *[None] * MORE_ROWS]
    rows = [_row(table, question, spelling, values, rng) for question in asked]
    rng.shuffle(rows)
    return Cells(rows, spelling)


def _row(
    table: WikiTable,
    question: WikiQuestion | None,
    spelling: Mapping[tuple[str, str], str],
    values: Mapping[str, Sequence[str]],
    rng: Random,
) -> Row:
    """A row of known values, on which the question's conditions hold."""
    row = {column.name: _cell(column, values[column.name], rng) for column in table.columns}
    if question is not None and row[question.select] is None:
        row[question.select] = "unknown"
    for header, operator, value in question.conditions if question else ():
        numeric = table.column(header).numeric
        row[header] = _number(value) + _STEPS[operator] if numeric else spelling[header, value.casefold()]
    return row


def _cell(column: WikiColumn, known: Sequence[str], rng: Random) -> str | float | None:
    if column.numeric:
        return _number(rng.choice(known)) if known else rng.randint(1, 60)
    return rng.choice(known) if known else None


_STEPS = {"=": 0, ">": 1, "<": -1}


def fill(composition: Composition, pool: Pool, file: Path, rng: Random) -> dict[str, Cells]:
    """Insert rows into the database of that schema; each WikiSQL table's cells by its id."""
    made = {each.table.id: cells(each.table, pool, rng) for each in composition.tables}
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        for each in composition.tables:
            _insert(connection, each, made[each.table.id].rows, rng)
    return made


def _insert(connection: sqlite3.Connection, each: Invented, rows: Sequence[Row], rng: Random) -> None:
    headers = {column: header for header, (_, column) in each.places.items() if header != each.moved}
    moved: dict[object, int] = {}
    for number, row in enumerate(rows, 1):
        if each.moved:
            moved.setdefault(row[each.moved], len(moved) + 1)
        values = [
            row[headers[column.name]] if column.name in headers
            else number if column.primary_key
            else moved[row[each.moved]] if each.moved and column.name == each.rows_in.foreign_keys[0].columns[0]
            else rng.randint(1, len(rows))
            for column in each.rows_in.columns
        ]  # fmt: skip
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO {_quoted(each.rows_in.name)} VALUES ({marks})", values)
    if each.moved:
        other = _quoted(each.places[each.moved][0])
        connection.executemany(f"INSERT INTO {other} VALUES (?, ?)", [(n, value) for value, n in moved.items()])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
