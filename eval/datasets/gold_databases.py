"""Databases of the training questions, and gold SQL verified by execution on them.

Verifies SQL by executing it and comparing its rows with those of the gold query. Only here is SQL run twice.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlglot import exp

from eval.datasets.gold_sql import GoldError, normalise, parse, place_of, sql_text
from eval.datasets.official import Question
from tools.databases.choices import with_choices
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Limits, Result
from tools.schema import Column, ColumnRef, ForeignKey, Schema, Table


@dataclass(frozen=True, slots=True)
class TrainingDatabase:
    """A training database on SQLite. has_rows: without rows it can only bind, and executing a query says nothing."""

    db_id: str
    schema: Schema
    engine: Database
    has_rows: bool

    def close(self) -> None:
        self.engine.close()


def open_training(data: Path, questions: Sequence[Question], scratch: Path) -> TrainingDatabase:
    """The database of these questions, which must share one. `scratch` holds the empty databases until the build ends."""
    db_id, source = questions[0].db_id, questions[0].source
    file = data / "spider" / "database" / db_id / f"{db_id}.sqlite"
    if source == "bird" or not file.is_file():
        schema = _bird_schema(data, db_id, questions) if source == "bird" else described_schema(data, db_id)
        native = empty_database(schema, scratch)
        return TrainingDatabase(db_id, with_notes(native.schema(), schema), native, has_rows=False)
    native = open_database(file, engine="sqlite")
    full = any(table.row_count for table in native.schema().tables)
    return TrainingDatabase(db_id, with_choices(native.schema(), native), native, full)


def with_notes(schema: Schema, noted: Schema) -> Schema:
    """The schema with the comments, samples and choices that columns of the same names have in `noted`."""
    return replace(schema, tables=tuple(_with_notes(table, noted.table(table.name)) for table in schema.tables))


def _with_notes(table: Table, noted: Table | None) -> Table:
    known = ((column, noted.column(column.name) if noted else None) for column in table.columns)
    columns = tuple(
        replace(column, comment=said.comment, samples=said.samples, choices=said.choices) if said else column
        for column, said in known
    )
    return replace(table, columns=columns)


def empty_database(schema: Schema, scratch: Path) -> Database:
    """A database of this schema without rows; SQL binds, or fails to, as on the full database."""
    return opened_file(empty_file(schema, scratch))


def empty_file(schema: Schema, scratch: Path) -> Path:
    """A new SQLite file with the tables of this schema."""
    file = scratch / f"{uuid4().hex}.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            "PRAGMA synchronous = OFF;\nBEGIN;\n" + "\n".join(map(_create, schema.tables)) + "\nCOMMIT;"
        )
    return file


def opened_file(file: Path) -> Database:
    """A SQLite file in SQLite's dialect, its schema read."""
    opened = open_database(file, engine="sqlite")
    opened.schema()
    return opened


def _create(table: Table) -> str:
    keys = [column.name for column in table.columns if column.primary_key]
    parts = [f"{_quoted(column.name)} {column.type}".rstrip() for column in table.columns]
    parts += [f"PRIMARY KEY ({_listed(keys)})"] if keys else []
    parts += [
        f"FOREIGN KEY ({_listed(key.columns)}) REFERENCES {_quoted(key.ref_table)} ({_listed(key.ref_columns)})"
        for key in table.foreign_keys
    ]
    return f"CREATE TABLE {_quoted(table.name)} ({', '.join(parts)});"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def described_schema(data: Path, db_id: str) -> Schema:
    """A Spider database as tables.json describes it: names, types and keys, no rows."""
    entry = _described(data / "spider" / "tables.json")[db_id]
    names: list[str] = entry["table_names_original"]
    columns: list[list[Any]] = entry["column_names_original"]
    keys = {key for part in entry["primary_keys"] for key in (part if isinstance(part, list) else [part])}
    tables = []
    for number, name in enumerate(names):
        own = [i for i, (table, _) in enumerate(columns) if table == number]
        listed = tuple(Column(columns[i][1], _TYPES.get(entry["column_types"][i], "TEXT"), i in keys) for i in own)
        foreign = tuple(
            ForeignKey((columns[a][1],), names[columns[b][0]], (columns[b][1],))
            for a, b in entry["foreign_keys"]
            if a in own
        )
        tables.append(Table(name, listed, foreign))
    own_book = "sqlite_sequence"  # SQLite's own, for AUTOINCREMENT; tables.json lists it, databases do not
    return Schema(tuple(table for table in tables if table.name != own_book), "sqlite")


@cache
def _described(file: Path) -> dict[str, dict[str, Any]]:
    return {entry["db_id"]: entry for entry in json.loads(file.read_text(encoding="utf-8"))}


_TYPES = {"number": "NUMERIC", "text": "TEXT", "time": "DATE", "boolean": "BOOLEAN"}


def _bird_schema(data: Path, db_id: str, questions: Sequence[Question]) -> Schema:
    """The schema from the column descriptions: names and what they mean. Keys are the joins that gold queries make at
    least twice; a key refers to the side that is the first column of its table."""
    described = json.loads((data / "bird" / "train" / "train_descriptions.json").read_text(encoding="utf-8"))[db_id]
    tables = tuple(
        Table(name.strip(), tuple(Column(c, "", comment=said) for c, said in _stripped(columns).items()))
        for name, columns in described.items()
    )
    schema = Schema(tables, "sqlite")
    joins = Counter(join for question in questions for join in _joins(question.gold, schema))
    keys = [_directed(join, schema) for join, count in joins.items() if count > 1]
    return replace(schema, tables=tuple(_with_keys(table, keys) for table in tables))


def _stripped(columns: dict[str, str | None]) -> dict[str, str]:
    """Descriptions by name, without spaces around either; the first of two columns of one name."""
    found: dict[str, str] = {}
    for name, said in columns.items():
        found.setdefault(name.strip(), (said or "").strip())
    return found


def _joins(gold: str, schema: Schema) -> set[tuple[ColumnRef, ColumnRef]]:
    try:
        conditions = list(parse(gold, "sqlite").find_all(exp.EQ))
    except GoldError:
        return set()
    pairs = ((equal.this, equal.expression) for equal in conditions)
    ends = [
        sorted(place for side in pair if (place := place_of(side, schema)) is not None)
        for pair in pairs
        if isinstance(pair[0], exp.Column) and isinstance(pair[1], exp.Column)
    ]
    return {(pair[0], pair[1]) for pair in ends if len(pair) == 2 and pair[0][0] != pair[1][0]}


def _directed(join: tuple[ColumnRef, ColumnRef], schema: Schema) -> tuple[ColumnRef, ColumnRef]:
    first = {(table.name, table.columns[0].name) for table in schema.tables}
    return join[::-1] if join[0] in first and join[1] not in first else join


def _with_keys(table: Table, keys: Sequence[tuple[ColumnRef, ColumnRef]]) -> Table:
    referred = {there for _, there in keys}
    first = table.columns[0].name
    columns = tuple(replace(c, primary_key=c.name == first and (table.name, first) in referred) for c in table.columns)
    foreign = tuple(ForeignKey((a[1],), b[0], (b[1],)) for a, b in keys if a[0] == table.name)
    return replace(table, columns=columns, foreign_keys=foreign)


LIMITS = Limits(deadline_s=10.0, max_rows=50_000)


@dataclass(frozen=True, slots=True)
class Target:
    """A query in the style. `rows`: how many it returned; None if the database holds no rows at all."""

    tree: exp.Query
    rows: int | None


def gold_target(gold: str, database: TrainingDatabase) -> Target:
    """The gold query in the style, verified to return the same rows in the same order or, on an empty database, to bind.

    Raises GoldError, whose text begins with the kind of failure: `gold fails`, `not normalised`, `rows differ`.
    """
    tree = normalise(gold, database.schema)
    if not database.has_rows:
        return Target(bound(tree, database), None)
    wanted, given = run(gold, database.engine, "gold fails"), run(sql_text(tree), database.engine)
    if wanted.rows != given.rows:
        raise GoldError("rows differ after normalising")
    return Target(tree, len(given.rows))


def own_target(tree: exp.Query, database: TrainingDatabase) -> Target:
    """A query that this program generated; it must run. Raises GoldError."""
    if not database.has_rows:
        return Target(bound(tree, database), None)
    return Target(tree, len(run(sql_text(tree), database.engine).rows))


def bound(tree: exp.Query, database: TrainingDatabase) -> exp.Query:
    """The tree, if SQLite would run it. Raises GoldError."""
    error = database.engine.explain(sql_text(tree))
    if error is not None:
        raise GoldError(f"does not bind: {error.message}")
    return tree


def run(sql: str, database: Database, failure: str = "does not run") -> Result:
    """The complete result. Raises GoldError."""
    result = database.execute(sql, LIMITS)
    if not isinstance(result, Result):
        raise GoldError(f"{failure}: {result.message}")
    if result.truncated:
        raise GoldError(f"{failure}: more than {LIMITS.max_rows} rows")
    return result
