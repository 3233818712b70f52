"""DuckDB compared with SQLite: rows that mean the same compare as equal, whatever types the engines give them.

What Spider's and BIRD's rules say apart from their scores: each line of them, seen in what a run leaves behind.
"""

import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from eval.accuracy.record import Prediction
from eval.accuracy.run import evaluate
from eval.datasets.official import Example
from eval.datasets.selection import load_dataset
from eval.scoring.bird import BIRD
from eval.scoring.referee import Referee, Task
from eval.scoring.referee_pool import Worker
from eval.scoring.rules import PLACEHOLDER, Rules
from eval.scoring.run_query import comparable, connect
from eval.scoring.spider_rules import SPIDER


@pytest.mark.parametrize(
    ("duckdb", "sqlite"),
    [
        (Decimal("12.50"), 12.5),
        (Decimal("12"), 12),
        (Decimal(10**25), 1e25),
        (True, 1),
        (2.0, 2),
        (0.1 + 0.2, 0.3),
        (math.nan, None),
        (math.inf, math.inf),
        (date(2024, 2, 9), "2024-02-09"),
        (datetime(2024, 2, 9, 8, 30), "2024-02-09 08:30:00"),
        (time(8, 30), "08:30:00"),
        ("a", "a"),
        (b"\x00", b"\x00"),
    ],
)
def test_values_of_both_engines_become_equal(duckdb: object, sqlite: object) -> None:
    """Guards each conversion; also their text and type, by which Spider's comparison sorts cells."""
    ours, theirs = comparable([(duckdb,)]), comparable([(sqlite,)])
    assert ours == theirs
    assert type(ours[0][0]) is type(theirs[0][0])


def test_values_that_differ_stay_different() -> None:
    """Guards against normalising too much: text is no number, the tenth digit counts."""
    assert comparable([("1",)]) != comparable([(1,)])
    assert comparable([(1.000000001,)]) != comparable([(1.0,)])
    assert comparable([(None,)]) != comparable([("None",)])


def test_the_connection_alone_is_read_only(orders: Path) -> None:
    """Guards mode=ro behind the authorizer: each must hold without the other."""
    connection = connect(str(orders), lenient=True)
    connection.set_authorizer(None)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM orders")
    connection.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with closing(Worker(16384)) as worker:
        yield worker


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("orders") / "orders.sqlite"
    with sqlite3.connect(file) as connection:
        connection.executescript(
            """CREATE TABLE orders (id INTEGER PRIMARY KEY, day DATE, amount DECIMAL(10, 2), paid BOOLEAN, note TEXT);
            INSERT INTO orders VALUES (1, '2024-01-05', 12.5, 1, 'x'), (2, '2024-02-09', 20, 0, NULL),
                                      (3, '2024-02-09', 7.25, 1, 'y');"""
        )
    connection.close()
    return file


@pytest.mark.parametrize(
    ("gold", "predicted", "correct"),
    [
        ("SELECT day, sum(amount) FROM orders GROUP BY day", "SELECT sum(amount), day FROM orders GROUP BY day", True),
        ("SELECT count(*), avg(amount) FROM orders", "SELECT avg(amount), count(*) FROM orders", True),
        ("SELECT sum(id) FROM orders", "SELECT sum(id)::HUGEINT FROM orders", True),
        ("SELECT paid FROM orders ORDER BY id", "SELECT paid FROM orders ORDER BY id", True),
        ("SELECT sum(id) / count(*) + 0.5 FROM orders", "SELECT 2.5::DECIMAL(4, 2)", True),
        ("SELECT note FROM orders WHERE id = 2", "SELECT NULL", True),
        ("SELECT id FROM orders ORDER BY id", "SELECT id FROM orders ORDER BY id DESC", False),
        ("SELECT count(*) FROM orders", "SELECT count(*) FROM order_lines", False),
    ],
)
def test_prediction_in_duckdb_against_gold_in_sqlite(
    worker: Worker, orders: Path, gold: str, predicted: str, correct: bool
) -> None:
    """Guards the DuckDB engine: gold in SQLite on the original, the prediction in DuckDB on what was loaded from it."""
    assert worker.judge(Task(SPIDER, "duckdb", gold, predicted, (str(orders),), 20)).correct == correct


def test_birds_rules_in_duckdb(worker: Worker, orders: Path) -> None:
    """Guards BIRD's figures with the DuckDB engine: its own rules, and no efficiency score across engines."""
    gold, swapped = "SELECT id, day FROM orders", "SELECT day, id FROM orders"
    verdicts = [worker.judge(Task(BIRD, "duckdb", gold, sql, (str(orders),), 20)) for sql in (gold, swapped)]
    assert [(v.correct, v.soft_f1, v.ves_reward) for v in verdicts] == [(True, 1.0, None), (False, 1.0, None)]


def test_attacks_end_in_a_verdict(worker: Worker, orders: Path) -> None:
    """Guards the DuckDB process: a bomb stops in time, a write and a file reader are refused, the next is scored."""
    bomb = "SELECT count(*) FROM " + ", ".join(f"range(100000) AS t{i}(x{i})" for i in range(4))
    for sql in (bomb, "DELETE FROM orders", "SELECT * FROM read_csv('/etc/passwd')"):
        verdict = worker.judge(Task(SPIDER, "duckdb", "SELECT 1", sql, (str(orders),), 1.0))
        assert verdict.error is not None
    assert worker.judge(Task(SPIDER, "duckdb", "SELECT 3", "SELECT count(*) FROM orders", (str(orders),), 20)).correct


def test_file_that_duckdb_cannot_load_is_named(worker: Worker, tmp_path: Path) -> None:
    """Guards against scoring a prediction wrong for a database that could not be loaded."""
    file = tmp_path / "broken.sqlite"
    file.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    verdict = worker.judge(Task(SPIDER, "duckdb", "SELECT 1", "SELECT 1", (str(file),), 20))
    assert verdict.gold_error is not None
    assert "cannot load" in verdict.gold_error or "not a database" in verdict.gold_error


def test_a_run_on_duckdb(spider: Path, tmp_path: Path) -> None:
    """Guards the engine through a whole run on real data: aggregates over one table mean the same in both dialects."""
    simple = re.compile(r"SELECT (count|max|min|sum)\(\*?\w*\) FROM \w+", re.IGNORECASE)
    examples = [
        example for example in load_dataset("spider", spider) if example.executable and simple.fullmatch(example.gold)
    ]
    summary = evaluate(
        examples, lambda e: Prediction(e.gold), "duckdb", tmp_path, dataset="spider", rules=SPIDER, progress=False
    )
    assert summary["n"] > 30
    assert (summary["executed"], summary["ex"]) == (summary["n"], 1.0)


NAMES = "SELECT name FROM author"


def run(invented: Path, out: Path, rules: Rules, levels: tuple[str, ...], engine: Any = "sqlite") -> dict[str, Any]:
    """Gold against gold on as many questions as there are difficulties, with times for R-VES."""
    file = invented / "database" / "library" / "library.sqlite"
    asked = [Example(str(i), "library", "?", NAMES, "", level, file) for i, level in enumerate(levels)]
    options: dict[str, Any] = {"dataset": "x", "rules": rules, "timed_runs": 2, "progress": False}
    return evaluate(asked, lambda example: Prediction(example.gold), engine, out, **options)


@pytest.mark.parametrize(
    ("rules", "levels"),
    [(SPIDER, ("easy", "medium", "hard", "extra")), (BIRD, ("simple", "moderate", "challenging"))],
)
def test_a_summary_has_the_difficulties_in_the_benchmarks_order(
    invented: Path, tmp_path: Path, rules: Rules, levels: tuple[str, ...]
) -> None:
    summary = run(invented, tmp_path, rules, ("another", *reversed(levels)))
    assert list(summary["by_difficulty"]) == [*levels, "another"]


def test_bird_alone_has_soft_f1_and_times_and_those_on_sqlite(invented: Path, tmp_path: Path) -> None:
    figures = {
        (type(rules).__name__, engine): run(invented, tmp_path / f"{i}-{engine}", rules, ("easy",), engine)
        for i, rules in enumerate((SPIDER, BIRD))
        for engine in ("sqlite", "duckdb")
    }
    assert {key: told["soft_f1"] for key, told in figures.items()} == {
        ("SpiderRules", "sqlite"): None, ("SpiderRules", "duckdb"): None,
        ("BirdRules", "sqlite"): 1.0, ("BirdRules", "duckdb"): 1.0,
    }  # fmt: skip
    timed = [key for key, told in figures.items() if told["r_ves"] is not None]
    assert timed == [("BirdRules", "sqlite")]
    assert [told["settings"]["timed_runs"] for told in figures.values()] == [0, 0, 2, 0]


def test_a_query_that_fails_has_birds_zeros(invented: Path) -> None:
    for rules, soft_f1, reward in ((SPIDER, None, None), (BIRD, 0.0, 0.0)):
        file = str(invented / "database" / "library" / "library.sqlite")
        verdict = Referee(lambda phase: None).judge(Task(rules, "sqlite", NAMES, "SELECT", (file,), 20, 2))
        assert (verdict.soft_f1, verdict.ves_reward) == (soft_f1, reward)


def test_bytes_that_are_not_utf_8_are_dropped_by_spider_and_fail_by_bird(invented: Path) -> None:
    file = str(invented / "database" / "legacy" / "legacy.sqlite")
    sql = "SELECT label FROM item"
    verdicts = [
        Referee(lambda phase: None).judge(Task(rules, "sqlite", sql, sql, (file,), 20)) for rules in (SPIDER, BIRD)
    ]
    assert verdicts[0].correct and "UTF-8" in str(verdicts[1].gold_error)


def test_only_birds_queries_share_their_time(invented: Path) -> None:
    """What the gold query took is no longer there for the prediction."""
    file, allowed = str(invented / "database" / "library" / "library.sqlite"), {}
    for rules in (SPIDER, BIRD):
        phases: list[Any] = []
        Referee(phases.append).judge(Task(rules, "sqlite", NAMES, NAMES, (file,), 20))
        allowed[rules] = {phase.name: phase.allowance_s for phase in phases}
    assert allowed[SPIDER]["gold"] == allowed[BIRD]["gold"] == allowed[SPIDER]["prediction"] == 20
    assert 19 < allowed[BIRD]["prediction"] < 20


def test_spiders_answers_hold_on_every_database_of_the_folder(tmp_path: Path) -> None:
    for name in ("b.sqlite", "a.sqlite", "notes.txt"):
        (tmp_path / name).touch()
    assert SPIDER.databases(tmp_path / "b.sqlite") == [tmp_path / "a.sqlite", tmp_path / "b.sqlite"]
    assert BIRD.databases(tmp_path / "b.sqlite") == [tmp_path / "b.sqlite"]


def test_order_counts_in_spiders_first_statement_alone() -> None:
    rows, turned = [(1,), (2,)], [(2,), (1,)]
    assert SPIDER.marks("SELECT a FROM t; SELECT a FROM t ORDER BY a", rows, turned).correct
    assert not SPIDER.marks("SELECT a FROM t ORDER BY a", rows, turned).correct
    assert BIRD.marks("SELECT a FROM t ORDER BY a", rows, turned).correct


def test_predictions_are_written_as_they_are_scored() -> None:
    assert [rules.prediction("SELECT 1 -- one\n") for rules in (SPIDER, BIRD)] == ["SELECT 1", "SELECT 1 -- one"]
    assert [rules.prediction(" ") for rules in (SPIDER, BIRD)] == [PLACEHOLDER, PLACEHOLDER]
    assert SPIDER.runnable("SELECT DISTINCT value") == "SELECT  1" and SPIDER.runnable_gold(
        "SELECT DISTINCT value"
    ) == ("SELECT  value")
    assert (
        BIRD.runnable("SELECT DISTINCT value") == BIRD.runnable_gold("SELECT DISTINCT value") == "SELECT DISTINCT value"
    )
