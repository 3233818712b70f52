"""Differential fuzzing of the guard: the engines themselves say what a statement that passed it reads and calls.

`make fuzz` runs it:

    python -m tests.tools.guard.fuzzing.differential MINUTES [SEED] [--go-on]

Each engine has two databases: one with hidden rows, and one that differs in the hidden things alone, which are not there. A
statement is given to the first, held to what is visible. The text that reaches the engine is caught, and run on both without
our locks: where they answer differently, the text read something hidden. SQLite's authorizer and DuckDB's `get_table_names`
say so too, and PostgreSQL prints its parse tree, in which no function may be that the text does not call by parentheses. Our
own parser has no say in it. Of each engine there is a target with a rule, too: rows that do not meet it are not there in the
second database. Ends with 1 at the first harm; `--go-on` looks for one of every kind.
"""

import random
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import sqlalchemy as sa

from tests.tools.databases.server.servers import Server, running
from tests.tools.guard.fuzzing.oddities import Oddities
from tools.databases.database import Database
from tools.databases.open_database import BareNamedDatabase, open_database, restricted
from tools.databases.server_engines import OWN_OPERATOR
from tools.guard.allowed import never
from tools.guard.visibility import Visibility
from tools.result import Limits, QueryError

CANARIES = ("777001", "777002", "777003", "sesame", "TOP-SECRET")
HIDDEN = Visibility(("people", "pets"), ("people.wage",))
LIMITS = Limits(deadline_s=5.0, max_rows=50, memory_limit_mb=256)
PROGRESS_S = 20.0
_VISIBLE = ("CREATE TABLE pets (owner INTEGER, name VARCHAR(30))", "INSERT INTO pets VALUES (1, 'rex')")
WHOLE = (
    *_VISIBLE,
    "CREATE TABLE people (id INTEGER, name VARCHAR(30), wage INTEGER, dept VARCHAR(30))",
    "INSERT INTO people VALUES (1, 'ann', 777001, 'x'), (2, 'bob', 777002, 'y'), (3, 'eve', 777003, 'x')",
    "CREATE TABLE secret (v VARCHAR(30))",
    "INSERT INTO secret VALUES ('sesame')",
)
CALLING = (
    "CREATE FUNCTION peek(text, text) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RETURN EXISTS (SELECT FROM secret); END'",
    "CREATE FUNCTION peek(text, pets) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RETURN EXISTS (SELECT FROM secret); END'",
    "CREATE FUNCTION whole(pets) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT v FROM secret); END'",
    "CREATE OPERATOR + (LEFTARG = text, RIGHTARG = text, FUNCTION = peek)",
    "CREATE OPERATOR && (LEFTARG = text, RIGHTARG = pets, FUNCTION = peek)",
    "CREATE OPERATOR !~~ (LEFTARG = text, RIGHTARG = pets, FUNCTION = peek)",
)
"""Operators of a PostgreSQL database's own, and a function that may be written like a column."""
RULE = "people: dept <> 'z'"
UNRULED = "INSERT INTO people VALUES (4, 'TOP-SECRET', 777004, 'z')"
"""A row that the rule keeps from being seen."""
REDUCED = (
    *_VISIBLE,
    "CREATE TABLE people (id INTEGER, name VARCHAR(30), dept VARCHAR(30))",
    "INSERT INTO people VALUES (1, 'ann', 'x'), (2, 'bob', 'y'), (3, 'eve', 'x')",
)


def without_bare_names(database: Database) -> Database:
    """The database that the engine's own locks are in."""
    return database.whole if isinstance(database, BareNamedDatabase) else database


def held_to_visible(database: Database, ruled: bool = False) -> Database:
    """The database of which HIDDEN holds, and RULE, as the program holds it."""
    return restricted(database, HIDDEN.tables, HIDDEN.hidden, [RULE] if ruled else [])


def _whole(ruled: bool) -> tuple[str, ...]:
    return (*WHOLE, UNRULED) if ruled else WHOLE


Answer = tuple[bool, str]  # whether it ran, and the rows or the error


@dataclass
class Target:
    """An engine under test. `whole` and `reduced` run a text without our locks; `inspected` asks the engine what it reads.
    `opened` is held to what is visible as the program does it, bare names and all."""

    name: str
    dialect: str
    opened: Database
    whole: Callable[[str], Answer]
    reduced: Callable[[str], Answer]
    secret: Path
    inspected: Callable[[str], str] = lambda text: ""
    ruled: bool = False
    reached: list[str] = field(default_factory=list)
    tried: int = 0
    ran: int = 0

    def __post_init__(self) -> None:
        engine: Any = without_bare_names(self.opened)
        run = engine._run

        def recording(sql: str, *more: Any, **named: Any) -> Any:
            outcome = run(sql, *more, **named)
            if not (isinstance(outcome, QueryError) and OWN_OPERATOR in outcome.message):  # which is looked for there
                self.reached.append(sql)
            return outcome

        engine._run = recording
        self.restricted = held_to_visible(self.opened, self.ruled)
        self.name += " with a rule" * self.ruled

    def harm(self, sql: str) -> str:
        """What is wrong with how the statement was treated; "" when nothing is."""
        self.reached.clear()
        self.tried += 1
        try:
            outcome = self.restricted.execute(sql.replace("{secret}", str(self.secret)), LIMITS)
        except Exception as error:  # bad SQL comes back as data
            return f"raised {type(error).__name__}: {error}"
        shown = "" if isinstance(outcome, QueryError) else repr(outcome.rows)
        if any(canary in shown for canary in CANARIES):
            return f"came out past every lock: {shown[:200]}"
        for text in self.reached:
            if found := self._misread(text):
                return f"{found}, in {text!r}"
        return ""

    def _misread(self, text: str) -> str:
        self.ran += 1
        if found := self.inspected(text):
            return found
        whole, reduced = self.whole(text), self.reduced(text)
        if any(canary in whole[1] for canary in CANARIES):
            return "the guard passed a read of something hidden"
        is_same = whole == reduced if whole[0] and reduced[0] else whole[0] == reduced[0]
        return "" if is_same else f"the answer depends on something hidden: {whole[1][:200]} and {reduced[1][:200]}"


def sqlite_target(folder: Path, ruled: bool = False) -> Target:
    for name, statements in (("whole", _whole(ruled)), ("reduced", REDUCED)):
        with closing(sqlite3.connect(folder / f"{name}.sqlite")) as connection:
            connection.executescript(";".join(statements))
    whole, reduced = (sqlite3.connect(folder / f"{name}.sqlite", isolation_level=None) for name in ("whole", "reduced"))
    for function in ("json_each", "json_tree"):  # what SQLite does to know these as tables, it does once
        whole.execute(f"SELECT 1 FROM {function}('[]')")

    def inspected(text: str) -> str:
        found: list[str] = []

        def note(action: int, first: str | None, second: str | None, *_: str | None) -> int:
            is_hidden = action == sqlite3.SQLITE_READ and ((first, second) == ("people", "wage") or first == "secret")
            is_function = action == sqlite3.SQLITE_FUNCTION and never((second or "").lower())
            if is_hidden or is_function or action not in _SQLITE_ACTIONS:
                found.append(f"SQLite's authorizer saw {action} {first} {second}")
            return sqlite3.SQLITE_OK

        whole.set_authorizer(note)
        _sqlite(whole, f"EXPLAIN {text}")
        whole.set_authorizer(None)
        return found[0] if found else ""

    opened = open_database(folder / "whole.sqlite", engine="sqlite")
    whole_answer, reduced_answer = partial(_sqlite, whole), partial(_sqlite, reduced)
    return Target("sqlite", "sqlite", opened, whole_answer, reduced_answer, folder / "s", inspected, ruled)


_SQLITE_ACTIONS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)


def _sqlite(connection: sqlite3.Connection, sql: str) -> Answer:
    try:
        return True, repr(connection.execute(sql).fetchmany(50))
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        return False, str(error)


def duckdb_target(folder: Path, ruled: bool = False) -> Target:
    for name, statements in (("whole", _whole(ruled)), ("reduced", REDUCED)):
        with duckdb.connect(str(folder / f"{name}.duckdb")) as connection:
            for statement in statements:
                connection.execute(statement)
    shutil.copyfile(folder / "whole.duckdb", folder / "open.duckdb")  # one file has one set of settings in a program
    whole = duckdb.connect(str(folder / "open.duckdb"), read_only=True, config={"threads": 1})
    reduced = duckdb.connect(str(folder / "reduced.duckdb"), read_only=True, config={"threads": 1})

    def inspected(text: str) -> str:
        try:
            names = whole.get_table_names(text)
        except (duckdb.Error, ValueError, RuntimeError):
            return ""
        return "DuckDB reads secret" if "secret" in names else ""

    opened = open_database(folder / "whole.duckdb")
    whole_answer, reduced_answer = partial(_duckdb, whole), partial(_duckdb, reduced)
    return Target("duckdb", "duckdb", opened, whole_answer, reduced_answer, folder / "s", inspected, ruled)


def _duckdb(connection: duckdb.DuckDBPyConnection, sql: str) -> Answer:
    try:
        return True, repr(connection.execute(sql).fetchmany(50))
    except (duckdb.Error, ValueError, RuntimeError, OverflowError) as error:
        return False, str(error)


def server_target(server: Server, name: str, settings: str, ruled: bool = False) -> Target:
    """A server's superuser, for whom the guard is the main lock. `settings`: what its administrator set."""
    folder = server.folder / "fuzzed"
    _prepared(server, name, settings, (*_whole(ruled), *(CALLING if server.kind == "postgresql" else ())))
    if not folder.exists():
        folder.mkdir()
        (folder / "secret").write_text("TOP-SECRET")
        shutil.chown(folder, server.folder.owner())
    opened, reduced = (open_database(server.url_of(server.superuser, each)) for each in (name, f"{name}_less"))
    dialect = "postgres" if server.kind == "postgresql" else "mysql"
    title = f"{server.kind} with {settings.rpartition('SET ')[2]}" if settings else server.kind
    inspected = _PostgreSQLCalls(server.url_of(server.superuser, name)) if dialect == "postgres" else lambda text: ""
    answers = partial(_server, without_bare_names(opened)), partial(_server, without_bare_names(reduced))
    return Target(title, dialect, opened, *answers, folder / "secret", inspected, ruled)


class _PostgreSQLCalls:
    """What PostgreSQL calls for a statement, by the parse tree that it prints on request. Nothing of the statement runs."""

    def __init__(self, url: str) -> None:
        self._connection: Any = sa.create_engine(url, isolation_level="AUTOCOMMIT").connect()
        settings = ("client_min_messages = log", "debug_print_parse = on", "debug_pretty_print = off")
        for setting in (*settings, "standard_conforming_strings = on"):
            self._connection.exec_driver_sql(f"SET {setting}")
        self._names = {
            str(oid): (name, schema)
            for oid, name, schema in self._connection.exec_driver_sql(
                "SELECT p.oid, proname, nspname FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace"
            )
        }
        self._said: list[str] = []
        driver = self._connection.connection.driver_connection
        driver.add_notice_handler(lambda notice: self._said.append(notice.message_detail or ""))

    def __call__(self, text: str) -> str:
        self._said.clear()
        try:
            self._connection.exec_driver_sql(f"PREPARE fuzzed AS {text}", execution_options={"no_parameters": True})
        except (sa.exc.SQLAlchemyError, ValueError):
            return ""
        tree = "".join(self._said)
        self._connection.exec_driver_sql("DEALLOCATE fuzzed")
        return next(filter(None, (self._harm(found, text) for found in _CALL.finditer(tree))), "")

    def _harm(self, call: re.Match[str], text: str) -> str:
        name, schema = self._names[call["called"] or call["operates"]]
        is_written = re.search(rf'\b{re.escape(name)}"?\s*\(', text, re.IGNORECASE)
        if schema != "pg_catalog" or never(name):
            return f"PostgreSQL calls {schema}.{name}"
        if call["form"] == "0" and not is_written and name not in _BY_SYNTAX:
            return f"PostgreSQL calls {name} without parentheses"
        return ""


_CALL = re.compile(
    r":funcid (?P<called>\d+) [^{}]*?:funcformat (?P<form>\d)|:(?:opfuncid|aggfnoid|winfnoid) (?P<operates>[1-9]\d*)"
)
_BY_SYNTAX = {"like_escape", "similar_to_escape", "overlaps", "timezone", "date_part", "json_array_elements"}


def _prepared(server: Server, name: str, settings: str, whole: tuple[str, ...]) -> None:
    for database, statements in ((name, whole), (f"{name}_less", REDUCED)):
        _autocommitted(server.url, f"CREATE DATABASE {database}")
        _autocommitted(server.url_of(server.superuser, database), *statements)
        if settings:
            _autocommitted(server.url, settings.format(name=database))


def _autocommitted(url: str, *statements: str) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def _server(database: Any, sql: str) -> Answer:
    """Run by the session that the program sets up, for its modes decide what the text means, and past all that looks at it."""
    try:
        with database._reading(LIMITS) as connection:
            return True, repr(connection.exec_driver_sql(sql, execution_options={"no_parameters": True}).fetchmany(50))
    except (sa.exc.SQLAlchemyError, ValueError, OSError) as error:
        return False, str(error)


SERVERS = {
    "postgresql": (("plain", ""), ("backslashes", "ALTER DATABASE {name} SET standard_conforming_strings = off")),
    "mariadb": (("plain", ""), ("modes", "SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT'")),
}


@contextmanager
def targets(kinds: tuple[str, ...] = ("sqlite", "duckdb", "postgresql", "mariadb")) -> Iterator[list[Target]]:
    """Those of the engines that are installed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        makers = {"sqlite": sqlite_target, "duckdb": duckdb_target}
        made = []
        for kind in (each for each in kinds if each in makers):
            for ruled in (False, True):
                (place := folder / f"{kind}{ruled:d}").mkdir()
                (place / "s").write_text("TOP-SECRET")
                made.append(makers[kind](place, ruled))
        for kind in kinds:
            for name, settings in SERVERS.get(kind, ()):
                try:  # a server of its own for each, because MariaDB's modes are the server's
                    server = stack.enter_context(running(kind))
                    made += [server_target(server, f"{name}{ruled:d}", settings, ruled) for ruled in (False, True)]
                except FileNotFoundError as error:
                    print(f"left out: {error}", file=sys.stderr)
                    break
        yield made


def fuzz(minutes: float, seed: int, go_on: bool) -> int:
    """How many kinds of harm were found."""
    with targets() as made:
        chances = {target.name: Oddities(target.dialect, random.Random(f"{seed} {target.name}")) for target in made}
        found: Counter[tuple[str, str]] = Counter()
        started_s = said_s = time.monotonic()
        while (now := time.monotonic()) < started_s + 60 * minutes:
            for target in made:
                kind, sql = chances[target.name].statement()
                harm = target.harm(sql)
                if harm and not found[target.name, kind]:
                    where = f"HARM after {now - started_s:.1f} s on {target.name} ({kind})"
                    print(f"{where}: {sql[:500]!r}\n  {harm[:700]}", flush=True)
                found[target.name, kind] += bool(harm)
                if harm and not go_on:
                    return 1
            if now > said_s + PROGRESS_S:
                said_s = now
                print(_counts(made), file=sys.stderr, flush=True)
        harms = sum(count > 0 for count in found.values())
        print(f"{harms or 'no'} harm in {(time.monotonic() - started_s) / 60:.1f} minutes: {_counts(made)}", flush=True)
        return harms


def _counts(made: list[Target]) -> str:
    return "; ".join(f"{each.name}: {each.tried} tried, {each.ran} reached the engine" for each in made)


if __name__ == "__main__":
    numbers = [text for text in sys.argv[1:] if not text.startswith("-")]
    seed_given = int(numbers[1]) if len(numbers) > 1 else random.randrange(2**32)
    print(f"seed {seed_given}", flush=True)
    sys.exit(fuzz(float(numbers[0]), seed_given, "--go-on" in sys.argv) > 0)
