"""Fuzzing of the guard: statements spliced from hostile and innocent ones; what the guard passes runs on engines without locks.

There it must leave files, tables, settings and variables as they were, and read nothing outside the database. By hand, for as
long as one likes, `make fuzz minutes=60`; it prints its counts, and the statement at fault when it finds one.
"""

import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Tokenizer

from tests.tools.assault import cases, filled, fingerprint, prepare
from tests.tools.harmless import HARMLESS
from tools.guard import guard
from tools.watchdog import Watchdog

DEADLINE_S = 0.2
LONGEST_SEED = 2000
_GLUE = (" ", " ", " ", " ", "\n", "\t", "/**/", "--\n", "\u00a0", "\x0b", "")
_EXTRA = (
    "(",
    ")",
    ";",
    ",",
    "*",
    "'",
    '"',
    "`",
    "[",
    "]",
    "$$",
    "--",
    "/*",
    "*/",
    "IN",
    "FROM",
    "WITH",
    "AS",
    "SELECT",
    ".",
)
_STATE = {
    "duckdb": "SELECT (SELECT list(t.table_name || t.sql) FROM duckdb_tables() t), (SELECT count(*) FROM duckdb_views()),"
    " (SELECT count(*) FROM duckdb_functions()), (SELECT list(s.name || coalesce(s.value, '')) FROM duckdb_settings() s),"
    " (SELECT count(*) FROM duckdb_variables()), (SELECT list(database_name) FROM duckdb_databases()),"
    " (SELECT count(*) FROM duckdb_secrets()), (SELECT count(*) FROM duckdb_extensions() WHERE loaded)",
    "sqlite": "SELECT (SELECT group_concat(sql) FROM sqlite_master), (SELECT count(*) FROM sqlite_temp_master),"
    " (SELECT group_concat(name || file) FROM pragma_database_list), total_changes()",
}


class Harm(AssertionError):
    """A statement that the guard passed and that did what none may."""


class Fuzzer:
    """One engine without locks, in one folder, and the statements for it."""

    def __init__(self, dialect: str, folder: Path) -> None:
        self.dialect, self._folder = dialect, prepare(folder)
        self._seeds = [tokens for sql in _seeds(dialect, folder) if (tokens := _tokens(sql, dialect))]
        self._connection: Any = (
            duckdb.connect(str(folder / "people.duckdb"))
            if dialect == "duckdb"
            else sqlite3.connect(folder / "people.sqlite", isolation_level=None, check_same_thread=False)
        )
        self._before = self._state()

    def statement(self, chance: random.Random) -> str:
        """A statement: the beginning of one, the end of another, and up to three changes."""
        first, second = chance.choice(self._seeds), chance.choice(self._seeds)
        tokens = first[: chance.randint(0, len(first))] + second[chance.randint(0, len(second)) :]
        tokens = tokens if chance.random() < 0.5 else list(first)
        for _ in range(chance.randint(0, 3)):
            place = chance.randint(0, len(tokens))
            donor = chance.choice(self._seeds)
            start = chance.randrange(len(donor))
            put = chance.choice(([], [chance.choice(_EXTRA)], donor[start : start + chance.randint(1, 6)]))
            tokens[place : place + chance.randint(0, 2)] = put
        return "".join(part for token in tokens for part in (token, chance.choice(_GLUE)))

    def check(self, sql: str) -> bool:
        """Whether the guard passed the statement. Raises Harm."""
        if guard(sql, self.dialect) is not None:
            return False
        said = self._run(sql)
        if "TOP-SECRET" in said:
            raise Harm(f"read outside: {sql!r}")
        if self._state() != self._before:
            raise Harm(f"changed something: {sql!r}")
        return True

    def close(self) -> None:
        self._connection.close()

    def _run(self, sql: str) -> str:
        with Watchdog(DEADLINE_S, self._connection.interrupt):
            try:
                return str(self._connection.execute(sql).fetchmany(50))
            except (
                duckdb.Error,
                sqlite3.Error,
                sqlite3.Warning,
                ValueError,
                OverflowError,
                MemoryError,
                TypeError,
            ) as error:
                return str(error)

    def _state(self) -> tuple[dict[str, str], str]:
        return fingerprint(self._folder), str(self._connection.execute(_STATE[self.dialect]).fetchall())


def _seeds(dialect: str, folder: Path) -> Iterator[str]:
    for case in cases(dialect):
        if case.guard_sees or "RECURSIVE" not in case.sql:
            yield filled(case.sql, folder)
        yield filled(case.twin(dialect), folder)
    yield from HARMLESS[dialect]


def _tokens(sql: str, dialect: str) -> list[str]:
    """The words and signs of a statement, as it spells them; none when it cannot be cut into such."""
    try:
        return [sql[token.start : token.end + 1] for token in Tokenizer(dialect=dialect).tokenize(sql[:LONGEST_SEED])]
    except SqlglotError:
        return []


@contextmanager
def fuzzers() -> Iterator[dict[str, Fuzzer]]:
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for dialect in ("duckdb", "sqlite"):
            (Path(folder) / dialect).mkdir()
            made[dialect] = Fuzzer(dialect, Path(folder) / dialect)
        try:
            yield made
        finally:
            for fuzzer in made.values():
                fuzzer.close()


def main(minutes: float, seed: int) -> None:
    """Fuzz for so many minutes; the same seed gives the same statements."""
    ends_s, chance = time.monotonic() + 60 * minutes, random.Random(seed)
    tried = dict.fromkeys(("duckdb", "sqlite"), 0)
    passed = dict(tried)
    with fuzzers() as made:
        while time.monotonic() < ends_s:
            for dialect, fuzzer in made.items():
                tried[dialect] += 1
                passed[dialect] += fuzzer.check(fuzzer.statement(chance))
            if tried["sqlite"] % 1000 == 0:
                print(f"tried {tried}, passed by the guard and run without locks {passed}", file=sys.stderr)
    print(f"no harm: tried {tried}, passed by the guard and run without locks {passed} (seed {seed})")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32))
