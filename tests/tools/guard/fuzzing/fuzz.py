"""Statements spliced from hostile and innocent ones, and engines without locks that run what the guard passes.

There it must leave files, tables, settings and variables as they were, read nothing outside the database, and be nothing but
a query in the engine's own parser's eyes. `test_fuzz.py` draws statements by chance, `guided_fuzz.py` where coverage grows.
"""

import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Tokenizer

from tests.tools.attacks.assault import cases, filled, fingerprint, prepare
from tests.tools.guard.harmless import HARMLESS
from tools.guard.guard import guard
from tools.processes import Watchdog

DEADLINE_S = 0.2
LONGEST_SEED = 2000
_GLUE = (" ", " ", " ", " ", "\n", "\t", "/**/", "--\n", "\u00a0", "\x0b", "")
_SIGNS = (
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
_MODEST = {"threads": 1, "memory_limit": "512MB", "temp_directory": ""}
_FUNCTIONS = {
    "duckdb": "SELECT DISTINCT function_name FROM duckdb_functions()",
    "sqlite": "SELECT DISTINCT name FROM pragma_function_list UNION SELECT name FROM pragma_module_list",
}
_STATE = {
    "duckdb": "SELECT (SELECT list(t.table_name || t.sql) FROM duckdb_tables() t), (SELECT count(*) FROM duckdb_views()),"
    " (SELECT count(*) FROM duckdb_types()), (SELECT list(s.name || coalesce(s.value, '')) FROM duckdb_settings() s),"
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
        cut = {sql: tokens for sql in _seeds(dialect) if (tokens := _tokens(sql, dialect))}
        self.seeds, self._donors = list(cut), list(cut.values())
        self._connection: Any = (
            duckdb.connect(str(folder / "people.duckdb"), config=_MODEST)
            if dialect == "duckdb"
            else sqlite3.connect(folder / "people.sqlite", isolation_level=None, check_same_thread=False)
        )
        self._words = _words(dialect, self._connection)
        self._before = self._state()

    def statement(self, chance: random.Random) -> str:
        """A statement: the beginning of one, the end of another, and up to three changes."""
        first, second = chance.choice(self._donors), chance.choice(self._donors)
        spliced = first[: chance.randint(0, len(first))] + second[chance.randint(0, len(second)) :]
        return self._changed(spliced if chance.random() < 0.5 else list(first), chance, chance.randint(0, 3))

    def neighbour(self, sql: str, chance: random.Random) -> str:
        """A statement that differs from `sql` in one to three places; `sql` itself where it cannot be cut into words."""
        tokens = _tokens(sql, self.dialect)
        return self._changed(tokens, chance, chance.randint(1, 3)) if tokens else sql

    def _changed(self, tokens: list[str], chance: random.Random, times: int) -> str:
        for _ in range(times):
            place = chance.randint(0, len(tokens))
            donor = chance.choice(self._donors)
            start = chance.randrange(len(donor))
            word = [chance.choice(chance.choice((_SIGNS, self._words)))]
            put = chance.choice(([], word, word, donor[start : start + chance.randint(1, 6)]))
            tokens[place : place + chance.randint(0, 2)] = put
        return "".join(part for token in tokens for part in (token, chance.choice(_GLUE)))

    def check(self, sql: str) -> bool:
        """Whether the guard passed the statement, in which `{folder}` and `{secret}` stand for paths. Raises Harm."""
        sql = filled(sql, self._folder)
        if guard(sql, self.dialect) is not None:
            return False
        if kind := self._other_than_query(sql):
            raise Harm(f"{self.dialect} takes it for {kind}: {sql!r}")
        said = self._run(sql)
        if "TOP-SECRET" in said:
            raise Harm(f"read outside: {sql!r}")
        if self._state() != self._before:
            raise Harm(f"changed something: {sql!r}")
        return True

    def close(self) -> None:
        self._connection.close()

    def _other_than_query(self, sql: str) -> str:
        """What DuckDB's own parser takes the statement for, unless it is one query or nothing; SQLite does not say."""
        if self.dialect != "duckdb":
            return ""
        try:
            kinds = [statement.type.name for statement in self._connection.extract_statements(sql)]
        except (duckdb.Error, ValueError):
            return ""
        return "" if kinds in (["SELECT"], []) else " and ".join(kinds)

    def _run(self, sql: str) -> str:
        with Watchdog(DEADLINE_S, self._connection.interrupt):
            try:
                result = self._connection.execute(sql)
                return str(result.fetchmany(50)) if result else ""
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


def _words(dialect: str, connection: Any) -> list[str]:
    """The words of the dialect: sqlglot's keywords, and the functions that the engine itself lists."""
    keywords = Dialect.get_or_raise(dialect).tokenizer_class.KEYWORDS
    return sorted({*keywords, *(f"{name}(" for (name,) in connection.execute(_FUNCTIONS[dialect]).fetchall())})


def _seeds(dialect: str) -> Iterator[str]:
    for case in cases(dialect):
        if case.guard_sees or "RECURSIVE" not in case.sql:
            yield case.sql
        if case.own_twin:  # the other twins differ in a string alone
            yield case.own_twin
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
