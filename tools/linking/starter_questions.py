"""Makes questions to begin with from the schema of a database. It uses no model and runs no query."""

import re
from collections.abc import Iterator
from pathlib import Path

from sqlglot import exp

from tools.example.build import FILE_NAME
from tools.example.questions import STARTERS, ExampleQuestion
from tools.schema import Column, Schema, Table
from tools.sql.parse_quietly import parse_quietly

_NUMBER = re.compile(r"INT|DEC|NUM|DOUBLE|FLOAT|REAL", re.IGNORECASE)
_NAMES = ("name", "title", "label")


def starters(schema: Schema, most: int = 4) -> list[str]:
    """At most `most` different questions, each about another table if there are enough.

    A table with a column to group by and a number has four questions:

    >>> genre = Column("genre", "TEXT", samples=("Rock", "Jazz"))
    >>> albums = Table("albums", (Column("title", "TEXT"), genre, Column("list_price", "REAL")))
    >>> for question in starters(Schema((albums,), "sqlite")):
    ...     print(question)
    How many albums are there?
    How many albums are there for each genre?
    What is the average list price of the albums?
    Which 5 albums have the highest list price?
    """
    tables = sorted(schema.tables, key=lambda table: -len(table.columns))
    rounds = [list(_questions(table)) for table in tables]
    longest = max(map(len, rounds), default=0)
    # The first question of the first table, the second of the second, and so on: no two alike.
    order = [rounds[i][(i + turn) % len(rounds[i])] for turn in range(longest) for i in range(len(rounds)) if rounds[i]]
    return list(dict.fromkeys(order))[:most]


def first_questions(schema: Schema, name: str, most: int = 4) -> list[str]:
    """What to ask first: written questions for the bundled database, by its name and tables, others made from the schema."""
    is_bundled = name == Path(FILE_NAME).stem
    written = [each.question for each in STARTERS if is_bundled and _can_be_asked(each, schema)]
    return written[:most] or starters(schema, most)


def _can_be_asked(starter: ExampleQuestion, schema: Schema) -> bool:
    """Whether all that its SQL reads is there: tables and columns may be hidden."""
    tables = {table.name for table in schema.tables}
    names = tables | {column.name for table in schema.tables for column in table.columns}
    (tree,) = parse_quietly(starter.sql, "duckdb")
    read = {each.name for each in tree.find_all(exp.Table)}
    return read <= tables and {each.name for each in tree.find_all(exp.Column)} <= names


def _questions(table: Table) -> Iterator[str]:
    name = _words(table.name)
    yield f"How many {name} are there?"
    group = _grouping(table)
    if group:
        yield f"How many {name} are there for each {_words(group.name)}?"
    number = _measure(table)
    if number:
        yield f"What is the average {_words(number.name)} of the {name}?"
        label = next((column for column in table.columns if _is_label(column)), None)
        if label:
            yield f"Which 5 {name} have the highest {_words(number.name)}?"


def _keys(table: Table) -> set[str]:
    foreign = {name.casefold() for key in table.foreign_keys for name in key.columns}
    return foreign | {column.name.casefold() for column in table.columns if column.primary_key}


def _grouping(table: Table) -> Column | None:
    """A text column with short samples that is neither a key nor a name."""
    return next((column for column in table.columns if _groups(table, column)), None)


def _groups(table: Table, column: Column) -> bool:
    short = bool(column.samples) and max(map(len, column.samples)) <= 16
    is_text = re.search("CHAR|TEXT|STRING", column.type, re.IGNORECASE) is not None
    return is_text and short and not _is_label(column) and column.name.casefold() not in _keys(table)


def _measure(table: Table) -> Column | None:
    keys = _keys(table)
    numbers = [c for c in table.columns if _NUMBER.search(c.type) and c.name.casefold() not in keys]
    return next((c for c in numbers if not re.search(r"(^|_)(id|year|code|no|number)$", c.name.casefold())), None)


def _is_label(column: Column) -> bool:
    return any(word in column.name.casefold() for word in _NAMES)


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").lower()
