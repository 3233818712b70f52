"""Our Spider scorers against verdicts recorded from the official script, pair by pair."""

import json
from pathlib import Path
from typing import Any

import pytest

from eval.datasets.selection import load_dataset
from eval.scoring.referee import Referee, Task
from eval.scoring.spider_parse import parse
from eval.scoring.spider_rules import SPIDER, exact_match, hardness, load_schemas

_FIXTURES = Path(__file__).parent / "fixtures"
PAIRS: list[dict[str, Any]] = json.loads((_FIXTURES / "spider_verdicts.json").read_text())["pairs"]
DEV = json.loads((_FIXTURES / "spider_dev_verdicts.json").read_text())


def _executes_alike(gold: str, predicted: str, database: Path) -> bool:
    task = Task(SPIDER, "sqlite", gold, SPIDER.prediction(predicted), (str(database),), timeout_s=30)
    return Referee(lambda _: None).judge(task).correct


@pytest.mark.parametrize("pair", PAIRS, ids=[pair["covers"] for pair in PAIRS])
def test_verdicts_on_our_pairs_are_the_official_ones(pair: dict[str, Any], invented: Path) -> None:
    """Guards every rule of execution accuracy, exact match and hardness: one rule, one or more pairs."""
    schema = load_schemas(invented / "tables.json")[pair["db"]]
    database = invented / "database" / pair["db"] / f"{pair['db']}.sqlite"
    assert _executes_alike(pair["gold"], pair["predicted"], database) == pair["ex"]
    assert exact_match(pair["gold"], SPIDER.prediction(pair["predicted"]), schema) == pair["em"]
    assert hardness(parse(pair["gold"], schema.tables)) == pair["hardness"]


def test_pairs_hold_both_verdicts_of_each_kind() -> None:
    """Guards against fixtures that a scorer with one answer for everything would pass."""
    assert len(PAIRS) >= 60
    assert {(pair["ex"], pair["em"]) for pair in PAIRS} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_verdicts_on_swapped_dev_questions_are_the_official_ones(spider: Path) -> None:
    """Guards the same rules on real queries and data: another question's gold query as the prediction."""
    examples = load_dataset("spider", spider)
    schemas = load_schemas(spider / "tables.json")
    differing = []
    for gold, predicted, ex, em, level in DEV["pairs"]:
        example, sql = examples[gold], examples[predicted].gold
        assert example.database is not None
        ours = [
            _executes_alike(example.gold, sql, example.database),
            exact_match(example.gold, sql, schemas[example.db_id]),
            example.difficulty,
        ]
        if ours != [ex, em, level]:
            differing.append((gold, predicted, ours))
    assert not differing
    assert len(DEV["pairs"]) >= 300


def test_a_query_matches_itself_on_all_of_dev(spider: Path) -> None:
    """Guards the reader: a gold query that it drops or misreads would not match itself, nor have a level."""
    schemas = load_schemas(spider / "tables.json")
    examples = load_dataset("spider", spider)
    assert all(exact_match(example.gold, example.gold, schemas[example.db_id]) for example in examples)
    levels = [example.difficulty for example in examples]
    assert {level: levels.count(level) for level in set(levels)} == {
        "easy": 248,
        "medium": 446,
        "hard": 174,
        "extra": 166,
    }
