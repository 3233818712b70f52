"""Scoring processes under attack: whatever a prediction does, there is a verdict, and the next question is scored."""

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eval.scoring.bird import BIRD
from eval.scoring.referee import Task, Verdict
from eval.scoring.referee_pool import Worker
from eval.scoring.rules import Rules
from eval.scoring.spider_rules import SPIDER

_CROSS_JOIN = "SELECT count(*) FROM " + ", ".join(f"loan AS t{i}" for i in range(16))
_ENDLESS_ROWS = "WITH RECURSIVE c(x) AS (SELECT zeroblob(100000) UNION ALL SELECT x FROM c) SELECT x FROM c"
_GOLD = "SELECT count(*) FROM author"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with closing(Worker(memory_mb=512)) as worker:
        yield worker


@pytest.fixture
def library(invented: Path) -> Path:
    return invented / "database" / "library" / "library.sqlite"


def _task(
    library: Path,
    predicted: str,
    *,
    gold: str = _GOLD,
    rules: Rules = SPIDER,
    timeout_s: float = 20,
    runs: int = 0,
) -> Task:
    return Task(rules, "sqlite", gold, predicted, (str(library),), timeout_s, runs)


def _still_scores(worker: Worker, library: Path) -> bool:
    return worker.judge(_task(library, _GOLD)).correct


def test_cross_join_bomb_is_killed_in_time(worker: Worker, library: Path) -> None:
    """Guards against a query that never returns to Python, which no signal handler or thread can stop."""
    started = time.perf_counter()
    verdict = worker.judge(_task(library, _CROSS_JOIN, timeout_s=0.5))
    assert time.perf_counter() - started < 5
    assert verdict == Verdict(error="timeout after 0.5 s")
    assert _still_scores(worker, library)


def test_bomb_in_the_gold_query_is_the_gold_querys_fault(worker: Worker, library: Path) -> None:
    """Guards against blaming the prediction for a gold query that does not end."""
    verdict = worker.judge(_task(library, _GOLD, gold=_CROSS_JOIN, timeout_s=0.5))
    assert verdict.gold_error == "timeout after 0.5 s"
    assert verdict.error is None


def test_birds_two_queries_share_their_time(worker: Worker, library: Path) -> None:
    """Guards the official deadline: 1.2 s for both queries, of which the gold query's share is gone."""
    slow = "SELECT count(*) FROM " + ", ".join(f"loan AS t{i}" for i in range(9))
    started = time.perf_counter()
    assert worker.judge(_task(library, _GOLD, gold=slow, rules=BIRD)).gold_error is None
    slow_s = time.perf_counter() - started
    verdict = worker.judge(_task(library, _CROSS_JOIN, gold=slow, rules=BIRD, timeout_s=3 * slow_s))
    assert verdict.error is not None
    assert float(verdict.error.split()[2]) < 2.9 * slow_s
    assert verdict.soft_f1 == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux honours the address space limit")
@pytest.mark.parametrize("sql", [_ENDLESS_ROWS, "SELECT zeroblob(900000000)"])
def test_huge_allocation_ends_in_a_verdict(worker: Worker, library: Path, sql: str) -> None:
    """Guards the machine: rows without end, or one cell larger than the limit, must not take all memory."""
    verdict = worker.judge(_task(library, sql))
    assert verdict.error == "out of memory"
    assert not verdict.correct
    assert _still_scores(worker, library)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_crash_is_a_verdict(worker: Worker, library: Path, number: signal.Signals) -> None:
    """Guards against a dead scoring process that hangs or ends the run."""
    assert _still_scores(worker, library)
    pid = worker.pid
    assert pid is not None
    timer = threading.Timer(0.3, os.kill, (pid, number))
    timer.start()
    verdict = worker.judge(_task(library, _CROSS_JOIN))
    assert verdict.error == f"the scoring process crashed ({number.name})"
    assert _still_scores(worker, library)
    assert worker.pid != pid


def test_process_that_died_idle_is_not_blamed_on_the_next_question(worker: Worker, library: Path) -> None:
    """Guards against scoring a question wrong because the process had died before it."""
    assert _still_scores(worker, library)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    assert _still_scores(worker, library)


def test_process_ends_itself_when_its_owner_is_gone(library: Path) -> None:
    """Guards against a bomb that outlives a killed run: the kernel's alarm ends it."""
    worker = Worker()
    assert _still_scores(worker, library)
    process = worker._process
    assert process is not None
    process.pipe.send(_task(library, _CROSS_JOIN, timeout_s=0.2))
    assert process.cause_of_death(patience_s=30) == "SIGALRM"
    worker.close()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM author",
        "WITH x AS (SELECT 1) INSERT INTO note SELECT 1, 'x'",
        "ATTACH 'other.db' AS other",
        "CREATE TEMP TABLE x AS SELECT 1",
        "PRAGMA writable_schema = 1",
        "VACUUM INTO 'copy.db'",
        "SELECT load_extension('x')",
    ],
)
def test_writes_are_refused(worker: Worker, library: Path, sql: str) -> None:
    """Guards the benchmark's files, and the places where mode=ro alone lets SQLite write."""
    before = library.read_bytes()
    verdict = worker.judge(_task(library, sql))
    assert verdict.error is not None
    assert library.read_bytes() == before
    assert not (library.parent / "other.db").exists()


@pytest.mark.parametrize("sql", ["SELECT 'a\0b'", "SELECT '\udc80'", "", ";"])
def test_odd_text_is_a_verdict(worker: Worker, library: Path, sql: str) -> None:
    """Guards against an exception of the driver that is not one of its database errors."""
    assert not worker.judge(_task(library, sql)).correct


def test_timing_gives_a_reward(worker: Worker, library: Path) -> None:
    """Guards R-VES end to end: a query against itself is about as fast, one with a needless join far slower."""
    fair = worker.judge(_task(library, _GOLD, rules=BIRD, runs=30))
    assert fair.ves_reward in (0.75, 1.0)
    slow = "SELECT (SELECT count(*) FROM author) FROM loan a, loan b, loan c, loan d, loan e, loan f"
    assert worker.judge(_task(library, slow, rules=BIRD, runs=5)).ves_reward == 0.25
    assert worker.judge(_task(library, "SELECT 0", rules=BIRD, runs=5)).ves_reward == 0.0


def test_a_test_suite_needs_every_database(worker: Worker, invented: Path, tmp_path: Path) -> None:
    """Guards test-suite accuracy: right on the first database alone is wrong."""
    library = invented / "database" / "library" / "library.sqlite"
    second = tmp_path / "second.sqlite"
    second.write_bytes(library.read_bytes())
    task = Task(SPIDER, "sqlite", _GOLD, "SELECT 4", (str(library), str(second)), 20)
    assert worker.judge(task).correct
    with sqlite3.connect(second) as connection:
        connection.execute("DELETE FROM author WHERE author_id = 4")
    connection.close()
    assert not worker.judge(task).correct
