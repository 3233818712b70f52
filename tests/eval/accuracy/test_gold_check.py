"""The harness on itself: gold against gold is right wherever it can be run, and the rest is named."""

from dataclasses import replace
from pathlib import Path

from eval.accuracy.harness import check_gold
from eval.datasets.official import Example
from eval.datasets.selection import load_dataset
from eval.scoring.bird import BIRD
from eval.scoring.spider_rules import SPIDER


def test_all_of_spider_dev(spider: Path) -> None:
    """Guards every step between a gold query and its verdict: 972 of 972, and the other 62 are named with the reason."""
    check = check_gold(load_dataset("spider", spider), SPIDER)
    assert (check.n, check.executed, check.agreed) == (1034, 972, 972)
    assert len(check.unrunnable) == 62
    assert {(db_id, reason) for _, db_id, reason in check.unrunnable} == {("wta_1", "the database is not there")}
    assert check.disagreed == ()


def test_all_of_bird_superhero(bird: Path) -> None:
    """Guards the same for BIRD's rules."""
    check = check_gold(load_dataset("bird", bird, db="superhero"), BIRD)
    assert (check.n, check.executed, check.agreed) == (129, 129, 129)
    assert check.unrunnable == check.disagreed == ()


def test_gold_that_fails_or_hangs_is_named(invented: Path) -> None:
    """Guards the list of gold queries that could not be run, and the value trap that makes a gold query wrong."""
    library = invented / "database" / "library" / "library.sqlite"
    fine = Example("fine", "library", "?", "SELECT name FROM author", database=library)
    bomb = "SELECT count(*) FROM " + ", ".join(f"loan AS t{i}" for i in range(16))
    examples = [
        fine,
        replace(fine, id="broken", gold="SELECT shoe FROM author"),
        replace(fine, id="bomb", gold=bomb),
        replace(fine, id="trap", gold="SELECT value FROM book"),
        replace(fine, id="missing", database=None),
    ]
    check = check_gold(examples, SPIDER, timeout_s=0.5)
    assert (check.n, check.executed, check.agreed) == (5, 2, 1)
    assert check.unrunnable == (
        ("broken", "library", "no such column: shoe"),
        ("bomb", "library", "timeout after 0.5 s"),
        ("missing", "library", "the database is not there"),
    )
    assert check.disagreed == ("trap",)
