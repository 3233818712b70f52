"""Our Spider scorers against verdicts recorded from the official script, pair by pair.

Spider's comparison of rows where recorded pairs do not reach: many columns, many equal columns.

SQL taken as text: what is dropped, what is kept.

Our BIRD scorers against verdicts recorded from the official scripts, and the arithmetic of R-VES.

Prediction files, read back the way the official scripts read them.
"""

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest

from eval.accuracy.record import Record
from eval.datasets.official import Example
from eval.datasets.selection import load_dataset
from eval.scoring.bird import BIRD, r_ves, time_reward
from eval.scoring.referee import Referee, Task
from eval.scoring.rules import PLACEHOLDER, Row, Rules, first_statement, one_line, without_distinct
from eval.scoring.spider_rules import SPIDER, hardness, spider_match

_FIXTURES = Path(__file__).parent / "fixtures"
PAIRS: list[dict[str, Any]] = json.loads((_FIXTURES / "spider_verdicts.json").read_text())["pairs"]
DEV = json.loads((_FIXTURES / "spider_dev_verdicts.json").read_text())


def _executes_alike(gold: str, predicted: str, database: Path) -> bool:
    task = Task(SPIDER, "sqlite", gold, SPIDER.prediction(predicted), (str(database),), timeout_s=30)
    return Referee(lambda _: None).judge(task).correct


@pytest.mark.parametrize("pair", PAIRS, ids=[pair["covers"] for pair in PAIRS])
def test_verdicts_on_our_pairs_are_the_official_ones(pair: dict[str, Any], invented: Path) -> None:
    """Guards every rule of execution accuracy and hardness: one rule, one or more pairs."""
    database = invented / "database" / pair["db"] / f"{pair['db']}.sqlite"
    assert _executes_alike(pair["gold"], pair["predicted"], database) == pair["ex"]
    assert hardness(pair["gold"]) == pair["hardness"]


def test_pairs_hold_both_verdicts_of_each_kind() -> None:
    """Guards against fixtures that a scorer with one answer for everything would pass."""
    assert len(PAIRS) >= 60
    assert {pair["ex"] for pair in PAIRS} == {0, 1}


def test_verdicts_on_swapped_dev_questions_are_the_official_ones(spider: Path) -> None:
    """Guards the same rules on real queries and data: another question's gold query as the prediction."""
    examples = load_dataset("spider", spider)
    differing = []
    for gold, predicted, ex, _, level in DEV["pairs"]:
        example, sql = examples[gold], examples[predicted].gold
        assert example.database is not None
        ours = [_executes_alike(example.gold, sql, example.database), example.difficulty]
        if ours != [ex, level]:
            differing.append((gold, predicted, ours))
    assert not differing
    assert len(DEV["pairs"]) >= 300


def test_every_query_of_dev_has_its_official_level(spider: Path) -> None:
    """Guards the reader: a gold query that it drops or misreads would have none or another one."""
    levels = [example.difficulty for example in load_dataset("spider", spider)]
    assert {level: levels.count(level) for level in set(levels)} == {
        "easy": 248,
        "medium": 446,
        "hard": 174,
        "extra": 166,
    }


# Equal cells in each pair of rows, equal columns as bags, and yet no order of columns makes the rows equal.
_GOLD: list[Row] = [(1, 2, 3), (2, 1, 3), (1, 2, 4), (1, 2, 4)]
_OTHER: list[Row] = [(1, 2, 3), (1, 2, 3), (1, 2, 4), (2, 1, 4)]


@pytest.mark.parametrize("ordered", [True, False])
def test_any_permutation_of_columns_matches(ordered: bool) -> None:
    """Guards the search: twelve columns in any order, rows shuffled where order is free, one changed cell refused."""
    rng = random.Random(3)
    gold: list[Row] = [tuple(rng.randrange(4) for _ in range(12)) for _ in range(30)]
    columns = rng.sample(range(12), 12)
    predicted: list[Row] = [tuple(row[c] for c in columns) for row in gold]
    if not ordered:
        rng.shuffle(predicted)
    assert spider_match(gold, predicted, ordered)
    predicted[7] = (predicted[7][0], predicted[7][2], predicted[7][1], *predicted[7][3:])
    changed = predicted[7][1] != predicted[7][2]
    assert spider_match(gold, predicted, ordered) != changed


def test_equal_columns_do_not_explode() -> None:
    """Guards against trying 12! orders of twelve equal columns next to three that cannot be matched."""
    gold, other = ([(0,) * 12 + row for row in rows] for rows in (_GOLD, _OTHER))
    started = time.perf_counter()
    assert not spider_match(gold, other, ordered=False)
    assert spider_match(gold, gold[::-1], ordered=False)
    assert time.perf_counter() - started < 5


def test_same_cells_in_other_pairing_do_not_match() -> None:
    """Guards against comparing columns one by one: each column matches as a bag, the rows do not."""
    assert not spider_match(_GOLD, _OTHER, ordered=False)


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELECT a\nFROM t", "SELECT a FROM t"),
        ("SELECT a --the name\nFROM t", "SELECT a   FROM t"),
        ("SELECT '-- kept'\tFROM t", "SELECT '-- kept' FROM t"),
        ("SELECT 'a\nb'", "SELECT 'a b'"),
        ("SELECT 'two  spaces' /* kept */", "SELECT 'two  spaces' /* kept */"),
        ("-- nothing else", ""),
        ("\n \n", ""),
    ],
)
def test_one_line(sql: str, line: str) -> None:
    """Guards against a line comment that swallows the rest once line breaks are spaces."""
    assert one_line(sql) == line


@pytest.mark.parametrize(
    ("sql", "first"),
    [
        ("SELECT 1; SELECT 2", "SELECT 1;"),
        ("SELECT ';' ; SELECT 2", "SELECT ';' ;"),
        ('SELECT "a;b" /* ; */ FROM t', 'SELECT "a;b" /* ; */ FROM t'),
        ("SELECT `a;b`, [c;d]; x", "SELECT `a;b`, [c;d];"),
    ],
)
def test_first_statement(sql: str, first: str) -> None:
    """Guards against cutting a statement at a semicolon inside a literal, a name or a comment."""
    assert first_statement(sql) == first


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        ("SELECT DISTINCT a", "SELECT  a"),
        ("SELECT count(distinct a)", "SELECT count( a)"),
        (
            "SELECT 'distinct', \"distinct\", `distinct`, [distinct]",
            "SELECT 'distinct', \"distinct\", `distinct`, [distinct]",
        ),
        ("SELECT distinctive, is_distinct", "SELECT distinctive, is_distinct"),
        ("SELECT 'it''s' , DISTINCT a", "SELECT 'it''s' ,  a"),
    ],
)
def test_without_distinct(sql: str, kept: str) -> None:
    """Guards against dropping the word where it is data or part of a name."""
    assert without_distinct(sql) == kept


PAIRS_BIRD_SCORE: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "fixtures" / "bird_verdicts.json").read_text()
)["pairs"]


@pytest.mark.parametrize("pair", PAIRS_BIRD_SCORE, ids=[pair["covers"] for pair in PAIRS_BIRD_SCORE])
def test_verdicts_are_the_official_ones(pair: dict[str, Any], invented: Path) -> None:
    """Guards every rule of EX and soft F1: one rule, one or more pairs."""
    database = str(invented / "database" / pair["db"] / f"{pair['db']}.sqlite")
    task = Task(BIRD, "sqlite", pair["gold"], BIRD.prediction(pair["predicted"]), (database,), timeout_s=30)
    verdict = Referee(lambda _: None).judge(task)
    assert verdict.correct == pair["ex"]
    assert verdict.soft_f1 == pytest.approx(pair["soft_f1"], abs=1e-9)


def test_there_are_enough_pairs_of_both_verdicts() -> None:
    """Guards against fixtures that a scorer with one answer for everything would pass."""
    assert len(PAIRS_BIRD_SCORE) >= 40
    assert {pair["ex"] for pair in PAIRS_BIRD_SCORE} == {0, 1}
    assert len({pair["soft_f1"] for pair in PAIRS_BIRD_SCORE}) > 5


@pytest.mark.parametrize(
    ("ratio", "reward"),
    [
        (4.0, 1.25),
        (2.0, 1.25),
        (1.99, 1.0),
        (1.0, 1.0),
        (0.99, 0.75),
        (0.5, 0.75),
        (0.49, 0.5),
        (0.25, 0.5),
        (0.1, 0.25),
    ],
)
def test_reward_steps(ratio: float, reward: float) -> None:
    """Guards the steps' edges, which belong to the upper step, and the case of no spread at all."""
    assert time_reward([ratio] * 5) == reward


def test_reward_drops_outliers() -> None:
    """Guards against one slow run deciding: 99 ratios of about 1.2 and one of 1,000 stay a reward of 1."""
    assert time_reward([1.2 + i / 1e4 for i in range(99)] + [1000.0]) == 1.0


def test_r_ves_is_the_mean_of_square_roots() -> None:
    """Guards the formula: wrong queries count 0, a twice as fast one counts sqrt(1.25)."""
    assert r_ves([0.0, 1.0, 1.25]) == pytest.approx((1 + math.sqrt(1.25)) / 3)
    assert r_ves([]) == 0.0


_PREDICTIONS = [
    "SELECT a\nFROM t -- why\nWHERE b\t= 1",
    "",
    "  \n",
    "-- only a comment",
    "SELECT 'x\u2028y'",
    "SELECT 2",
]


def _records() -> list[Record]:
    example = Example("0", "library", "?", "SELECT 1\nFROM t")
    return [
        Record(str(i), "library", "?", example.gold, sql, True, False, None, "", 1.0, 1, 1, [])
        for i, sql in enumerate(_PREDICTIONS)
    ]


def _write(rules: Rules, folder: Path) -> None:
    for name, text in rules.files(_records()).items():
        (folder / name).write_text(text, encoding="utf-8", errors="replace")


def test_pred_txt_has_one_filled_line_each(tmp_path: Path) -> None:
    """Guards against what shifts or ends the official script: an empty line, a line break or tab in a prediction."""
    _write(SPIDER, tmp_path)
    with (tmp_path / "pred.txt").open(encoding="utf-8") as file:
        lines = file.readlines()
    assert [line.rstrip("\n") for line in lines] == [
        "SELECT a FROM t   WHERE b = 1",
        PLACEHOLDER,
        PLACEHOLDER,
        PLACEHOLDER,
        "SELECT 'x\u2028y'",
        "SELECT 2",
    ]
    gold = (tmp_path / "gold.txt").read_text(encoding="utf-8").splitlines()
    assert gold == ["SELECT 1 FROM t\tlibrary"] * len(_PREDICTIONS)


def test_predict_dev_json_is_complete_and_in_order(tmp_path: Path) -> None:
    """Guards against a missing key or separator, which the official script raises on, and against a lost order."""
    _write(BIRD, tmp_path)
    predictions = json.loads((tmp_path / "predict_dev.json").read_text(encoding="utf-8"))
    assert list(predictions) == [str(i) for i in range(len(_PREDICTIONS))]
    pairs = [text.split("\t----- bird -----\t") for text in predictions.values()]
    assert all(len(pair) == 2 and pair[0].strip() and pair[1] == "library" for pair in pairs)
    assert pairs[0][0] == _PREDICTIONS[0]
    gold = (tmp_path / "dev_gold.sql").read_text(encoding="utf-8").splitlines()
    assert [line.strip().split("\t") for line in gold] == [["SELECT 1 FROM t", "library"]] * len(_PREDICTIONS)
