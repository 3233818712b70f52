"""Invents schemas and rows for WikiSQL's tables.

Invents schemas for WikiSQL's tables: one to three of them together, similar or not, with names in one style, id columns and
foreign keys; in some, the values of a column are in a table of their own.

Rows for an invented schema, so that values are found as in a real database and no question's answer is empty.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tools.linking.word_forms import name_words, word_set
from tools.schema import Column, ColumnRef, ForeignKey, Schema, Table
from training.variants.wording import plural, singular
from training.wikisql.names import Spelling, table_names
from training.wikisql.questions import WikiColumn, WikiQuestion, WikiTable, number_of, spoken

TABLES = (1, 2, 2, 3, 3)  # in a schema, drawn
SIMILAR = 0.5  # probability that another table shares a column with the first
WITH_IDS = 0.5
LINKED = 0.3  # probability that one of several tables with ids refers to another
MOVED = 0.2  # probability that the values of an entity's column are in a table of their own
ENTITIES = word_set("""team player country driver club nation party college city constructor director venue artist county school
    manufacturer tournament league stadium rider region competition circuit label state winner entrant""")


@dataclass(frozen=True, slots=True)
class Invented:
    """A WikiSQL table in the schema: the table that holds its rows, and where each header's column is. One header at most,
    `moved`, is in another table, to which the first foreign key leads."""

    table: WikiTable
    rows_in: Table
    places: Mapping[str, ColumnRef]
    moved: str = ""


@dataclass(frozen=True, slots=True)
class Composition:
    """An invented schema and its WikiSQL tables."""

    schema: Schema
    tables: tuple[Invented, ...]


def together(tables: Sequence[WikiTable], rng: Random) -> Iterator[list[WikiTable]]:
    """The tables in random groups of one to three, each table once."""
    order = rng.sample(list(tables), len(tables))
    left = {table.id: table for table in order}
    alike: dict[str, list[WikiTable]] = defaultdict(list)
    for table in order:
        for column in table.columns:
            alike[column.name].append(table)
    for first in order:
        if left.pop(first.id, None) is None:
            continue
        group = [first]
        for _ in range(rng.choice(TABLES) - 1):
            found = _companion(first, left, alike, rng)
            if found is not None:
                group.append(left.pop(found.id))
        rng.shuffle(group)
        yield group


def _companion(
    first: WikiTable, left: Mapping[str, WikiTable], alike: Mapping[str, Sequence[WikiTable]], rng: Random
) -> WikiTable | None:
    """Another table: one that shares a column with the first, or any."""
    sharing = [table for table in alike[rng.choice(first.columns).name] if table.id in left]
    if sharing and rng.random() < SIMILAR:
        return rng.choice(sharing)
    return next(iter(left.values()), None)


def compose(group: Sequence[WikiTable], rng: Random) -> Composition:
    """The schema of these tables, in random order; no two have the same name."""
    spelling, with_ids, taken = Spelling(rng), rng.random() < WITH_IDS, set[str]()
    own, lookups = list[Invented](), list[Table]()
    for table in group:
        name = _table_name(table, spelling, taken, rng)
        invented, lookup = _invented(table, name, spelling, with_ids, taken, rng)
        own.append(invented)
        lookups += lookup
        taken |= {name.casefold(), *(other.name.casefold() for other in lookup)}
    if with_ids and len(own) > 1 and rng.random() < LINKED:
        first, second = rng.sample(range(len(own)), 2)
        own[first] = _linked(own[first], own[second].rows_in, spelling)
    tables = [*(each.rows_in for each in own), *lookups]
    rng.shuffle(tables)
    return Composition(Schema(tuple(tables), "sqlite"), tuple(own))


def _table_name(table: WikiTable, spelling: Spelling, taken: set[str], rng: Random) -> str:
    names = table_names(table)
    likely = rng.sample(names[:3], min(3, len(names)))
    free = (name for name in [*likely, *names] if spelling.table(name).casefold() not in taken)
    return spelling.table(next(free, names[0]), taken)


def _invented(
    table: WikiTable, name: str, spelling: Spelling, with_id: bool, taken: set[str], rng: Random
) -> tuple[Invented, list[Table]]:
    """The table under its names, and the one that holds a column's values, if there is one."""
    used, columns, places = set[str](), list[Column](), dict[str, ColumnRef]()

    def add(header: str, kind: str, *, key: bool = False) -> str:
        column = spelling.column(header, used)
        used.add(column.casefold())
        columns.append(Column(column, kind, primary_key=key))
        return column

    if with_id:
        add(rng.choice(("id", _id(name))), "INTEGER", key=True)
    moved = _moved(table, rng)
    for column in rng.sample(table.columns, len(table.columns)):
        if column.name != moved:
            places[column.name] = (name, add(column.name, "NUMERIC" if column.numeric else "TEXT"))
    if not moved:
        return Invented(table, Table(name, tuple(columns)), places), []
    other = spelling.table("_".join(plural(moved).split()), {*taken, name.casefold()})
    there, label = spelling.column(f"{moved} id", ()), spelling.column("name", ())
    lookup = Table(other, (Column(there, "INTEGER", primary_key=True), Column(label, "TEXT")))
    key = ForeignKey((add(f"{moved} id", "INTEGER"),), other, (there,))
    places[moved] = (other, label)
    return Invented(table, Table(name, tuple(columns), (key,)), places, moved), [lookup]


def _id(name: str) -> str:
    """The header of a table's id: of `draft_picks` it is `pick id`, of `medal_table` `medal id`."""
    words = [word for word in name_words(name) if word not in ("list", "info", "table", "results", "log")]
    return f"{singular(words[-1])} id" if words else "id"


def _moved(table: WikiTable, rng: Random) -> str:
    fitting = [column.name for column in table.columns if column.name in ENTITIES and not column.numeric]
    return rng.choice(fitting) if fitting and rng.random() < MOVED else ""


def _linked(invented: Invented, other: Table, spelling: Spelling) -> Invented:
    """The table with a column more, which refers to the other table's id."""
    here = invented.rows_in
    name = spelling.column(_id(other.name), {column.name.casefold() for column in here.columns})
    key = ForeignKey((name,), other.name, (other.columns[0].name,))
    columns = (*here.columns, Column(name, "INTEGER"))
    return replace(invented, rows_in=replace(here, columns=columns, foreign_keys=(*here.foreign_keys, key)))


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
