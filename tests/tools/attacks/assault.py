"""The hostile suite, to be pointed at anything that runs SQL: an engine, an editor, an agent, a protocol.

`run` is given one statement and says whether it ran, and everything that came back, as text. Every hostile statement must not
run, and every twin next to one must; nothing may be written, read outside the database, or hang.
"""

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import duckdb

from tests.tools.attacks.hostile import HOSTILE
from tests.tools.attacks.hostile_case import Hostile

Run = Callable[[str], tuple[bool, str]]

DEADLINE_S = 0.25
"""What `run` should give a query: those without end take all of it."""
PATIENCE_S = 30.0  # of a machine with much else to do
TRIES = 3  # of a twin there, for the deadline is short
DDL = (
    "CREATE TABLE people (id INTEGER PRIMARY KEY, name VARCHAR(30), age INTEGER)",
    "INSERT INTO people VALUES (1, 'ann', 40), (2, 'bob', 12)",
    "CREATE TABLE pets (owner INTEGER, name VARCHAR(30))",
    "CREATE INDEX people_by_name ON people (name)",
    "CREATE VIEW adults AS SELECT * FROM people WHERE age > 17",
)


def prepare(folder: Path) -> Path:
    """The folder under attack: one database per file engine, and a secret next to them."""
    with duckdb.connect(str(folder / "people.duckdb")) as connection:
        for statement in DDL:
            connection.execute(statement)
    with closing(sqlite3.connect(folder / "people.sqlite")) as connection:
        for statement in DDL:
            connection.execute(statement)
        connection.commit()
    (folder / "secret.csv").write_text("word\nTOP-SECRET\n")
    return folder


def fingerprint(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def filled(sql: str, folder: Path) -> str:
    """The statement with the paths of this folder."""
    return sql.replace("{folder}", str(folder)).replace("{secret}", str(folder / "secret.csv"))


def cases(dialect: str) -> list[Hostile]:
    return [case for case in HOSTILE if dialect in case.dialects]


def assault(run: Run, dialect: str, folder: Path, every_twin: bool = True) -> list[str]:
    """What went wrong, a line each; empty when every statement was kept out and every twin ran.

    `every_twin`: also those of the one shape that has a statement's words as data, which a slow `run` may be spared.
    """
    before = fingerprint(folder)
    problems = [problem for case in cases(dialect) for problem in _against(run, case, dialect, folder, every_twin)]
    changed = [] if fingerprint(folder) == before else [f"the folder changed: {sorted(fingerprint(folder))}"]
    return problems + changed


def _against(run: Run, case: Hostile, dialect: str, folder: Path, every_twin: bool) -> Iterator[str]:
    started = time.monotonic()
    ran, said = run(filled(case.sql, folder))
    if ran:
        yield f"ran: {case.sql[:100]!r}"
    if "TOP-SECRET" in said:
        yield f"read outside: {case.sql[:100]!r}"
    if time.monotonic() - started > DEADLINE_S + PATIENCE_S:
        yield f"hung: {case.sql[:100]!r}"
    if not (case.own_twin or every_twin):
        return
    twin = filled(case.twin(dialect), folder)
    for _ in range(TRIES):
        ran, said = run(twin)
        if ran:
            break
    else:
        yield f"refused the innocent {twin[:100]!r}: {said[:200]}"
