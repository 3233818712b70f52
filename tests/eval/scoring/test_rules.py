"""What Spider's and BIRD's rules say apart from their scores: each line of them, seen in what a run leaves behind."""

from pathlib import Path
from typing import Any

import pytest

from eval.accuracy.record import Prediction
from eval.accuracy.run import evaluate
from eval.datasets.official import Example
from eval.scoring.bird import BIRD
from eval.scoring.referee import Referee, Task
from eval.scoring.rules import PLACEHOLDER, Rules
from eval.scoring.spider_rules import SPIDER

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


def test_exact_match_is_spiders_where_the_gold_query_can_be_read(invented: Path) -> None:
    match = SPIDER.exact_match(invented / "tables.json")
    assert match("library", NAMES, "select NAME from author") is True
    assert match("library", NAMES, "SELECT born FROM author") is False
    assert match("library", "not a query", NAMES) is match("nowhere", NAMES, NAMES) is None
    assert SPIDER.exact_match(None)("library", NAMES, NAMES) is BIRD.exact_match(None)("library", NAMES, NAMES) is None
