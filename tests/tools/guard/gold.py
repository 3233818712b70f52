"""Sends gold queries past the guard: none may be refused, and rows and headings must be those of the text that was given.

    python -m tests.tools.guard.gold [--train] [--every N]

The queries are those of Spider's and BIRD's development sets, or of Spider's training sets, whose database is there. Each runs
past the engine's own locks alone, then past the guard as well, then once more with a table hidden that it does not name. On
DuckDB the text that is given is what `from_sqlite` makes of the gold query; what that cannot rewrite is not counted.
Ends with 1 where a query is refused or answers differently.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import quantiles
from time import thread_time
from typing import Literal

from tools.databases.database import Database
from tools.databases.duckdb_database import DuckDBDatabase
from tools.databases.guarded_database import GuardedDatabase
from tools.databases.open_database import BareNamedDatabase, RestrictedDatabase, open_database
from tools.guard.visibility import Visibility
from tools.result import Limits, QueryError, Result
from tools.sql.from_sqlite import from_sqlite

DATA = Path(__file__).parents[3].parent / "shared" / "data"
DEVELOPMENT = (("spider/dev.json", "spider/database", "query"), ("bird/dev/dev.json", "bird/dev", "SQL"))
TRAINING = tuple((f"spider/{name}.json", "spider/database", "query") for name in ("train_spider", "train_others"))
LIMITS = Limits(deadline_s=120.0, max_rows=1_000_000)
TRIES = 20

Engine = Literal["sqlite", "duckdb"]


@dataclass
class Tally:
    """`ran`: queries that run without the guard; `hidden`: those that ran again with a table hidden; `varying`: those whose
    rows differ from run to run. Milliseconds are of the processor, one for each query."""

    ran: int = 0
    hidden: int = 0
    varying: int = 0
    faults: list[str] = field(default_factory=list)
    guard_ms: list[float] = field(default_factory=list)
    hiding_ms: list[float] = field(default_factory=list)
    second_lock_ms: list[float] = field(default_factory=list)


def gold(sources: tuple[tuple[str, str, str], ...] = DEVELOPMENT) -> Iterator[tuple[str, Path]]:
    """Gold queries, each with the file of its database, where that is there."""
    for questions, folder, key in sources:
        files = {path.stem: path for path in (DATA / folder).rglob("*.sqlite")}
        for entry in json.loads((DATA / questions).read_text(encoding="utf-8")):
            if (path := files.get(entry["db_id"])) is not None:
                yield entry[key], path


def compare(queries: list[tuple[str, Path]], engine: Engine) -> Tally:
    """Run each query with and without the guard."""
    tally = Tally()
    for path, group in groupby(sorted(queries, key=lambda each: each[1]), key=lambda each: each[1]):
        with closing(open_database(path, engine="auto" if engine == "duckdb" else "sqlite")) as database:
            guarded = database.whole if isinstance(database, BareNamedDatabase) else database
            assert isinstance(guarded, GuardedDatabase)
            for sql, _ in group:
                if (given := _given(sql, guarded)) is not None:
                    _compare(given, guarded, tally)
    return tally


def _given(sql: str, database: GuardedDatabase) -> str | None:
    if database.dialect == "sqlite":
        return sql
    try:
        return from_sqlite(sql, database.schema())
    except ValueError:
        return None


def _compare(sql: str, database: GuardedDatabase, tally: Tally) -> None:
    database.hold_to(database.schema())
    settled = database._settled(sql) if isinstance(database, DuckDBDatabase) else None
    bare = database._run(settled.text if settled else sql, LIMITS)
    if isinstance(bare, QueryError):
        return
    tally.ran += 1
    tally.guard_ms.append(_ms(lambda: database._judged(sql)))
    if isinstance(database, DuckDBDatabase):
        tally.second_lock_ms.append(_second_lock_ms(sql, database))
    _hold_equal(sql, bare, database, "guard", tally)
    unnamed = next((table.name for table in database.schema().tables if table.name.lower() not in sql.lower()), None)
    if unnamed is not None and len(database.schema().tables) > 1:
        tally.hidden += 1
        seen = RestrictedDatabase(database, Visibility((), (unnamed,)))
        tally.hiding_ms.append(_ms(lambda: seen._narrowed(sql)) + tally.guard_ms[-1])
        _hold_equal(sql, bare, seen, f"{unnamed} hidden", tally)


def _hold_equal(sql: str, bare: Result, database: Database, way: str, tally: Tally) -> None:
    """The same headings and rows, in any order. LIMIT among equals may have an engine choose anew each time, so what differs is
    asked again.
    """
    for tries in range(TRIES):
        outcome = database.execute(sql, LIMITS)
        if isinstance(outcome, QueryError):
            tally.faults.append(f"{way}: {outcome.message}: {sql}")
            return
        if (outcome.columns, _ordered(outcome)) == (bare.columns, _ordered(bare)):
            tally.varying += tries > 0
            return
    tally.faults.append(f"{way}: other rows or headings: {sql}")


def _ordered(result: Result) -> list[str]:
    return sorted(map(repr, result.rows))


def _second_lock_ms(sql: str, database: DuckDBDatabase) -> float:
    with database._cursor(LIMITS) as (cursor, _):
        return _ms(lambda: database._objection(cursor, "", sql))


def _ms(do: Callable[[], object]) -> float:
    """Of this thread's processor time."""
    started = thread_time()
    do()
    return (thread_time() - started) * 1000


def _told(name: str, times_ms: list[float]) -> str:
    cuts = quantiles(times_ms, n=20)
    return f"{name}: p50 {cuts[9]:.2f} ms, p95 {cuts[18]:.2f}, most {max(times_ms):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    queries = list(gold(TRAINING if asked.train else DEVELOPMENT))[:: asked.every]
    faulty = False
    for engine in ("sqlite", "duckdb"):
        tally = compare(queries, engine)
        times = (
            ("guard", tally.guard_ms),
            ("with a table hidden", tally.hiding_ms),
            ("second lock", tally.second_lock_ms),
        )
        print(
            f"{engine}: {len(queries)} gold queries, {tally.ran} run without the guard; {tally.hidden} again with a table "
            f"hidden; {len(tally.faults)} refused or different, {tally.varying} vary by themselves",
            *(_told(*each) for each in times if len(each[1]) > 1),
            *tally.faults[:20],
            sep="\n  ",
            flush=True,
        )
        faulty |= bool(tally.faults)
    sys.exit(faulty)


if __name__ == "__main__":
    main()
