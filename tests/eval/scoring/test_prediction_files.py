"""Prediction files, read back the way the official scripts read them."""

import json
from pathlib import Path

from eval.accuracy.record import Record
from eval.datasets.official import Example
from eval.scoring.bird import BIRD
from eval.scoring.rules import PLACEHOLDER, Rules
from eval.scoring.spider_rules import SPIDER

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
        Record(str(i), "library", "?", example.gold, sql, True, False, None, None, "", 1.0, 1, 1, [])
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
