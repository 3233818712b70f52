"""Samples and shards: which questions are asked, and by whom."""

from collections import Counter
from pathlib import Path

import pytest

from eval.accuracy.run import evaluate
from eval.datasets.official import Example
from eval.datasets.registry import load_dataset, sampled, shard
from eval.predict.record import Prediction, ResumeError
from eval.scoring.spider.spider_rules import SPIDER

_SIZES = {"a": 40, "b": 20, "c": 12, "d": 8}
_MANY = [Example(f"{name}{i}", name, "?", "SELECT 1") for name, size in _SIZES.items() for i in range(size)]


def test_a_sample_is_spread_like_the_whole_and_part_of_every_larger_one() -> None:
    chosen = sampled(_MANY, 20)
    assert Counter(example.db_id for example in chosen) == pytest.approx({"a": 10, "b": 5, "c": 3, "d": 2}, abs=1)
    assert chosen == [example for example in _MANY if example in chosen], "in the order given"
    assert set(chosen) < set(sampled(_MANY, 30))
    assert chosen != _MANY[:20]
    assert sampled(_MANY, 500) == _MANY


def test_shards_share_the_questions_and_keep_databases_whole() -> None:
    parts = [shard(_MANY, number, 2) for number in (1, 2)]
    assert sorted(map(len, parts)) == [40, 40]
    assert not {e.db_id for e in parts[0]} & {e.db_id for e in parts[1]}
    assert sorted(e.id for part in parts for e in part) == sorted(e.id for e in _MANY)


def test_a_sample_of_spider_is_executable(spider: Path) -> None:
    examples = load_dataset("spider", spider, sample=100)
    assert len(examples) == 100
    assert all(example.executable for example in examples)
    assert len({example.db_id for example in examples}) >= 18


def _examples(invented: Path) -> list[Example]:
    return [
        Example(str(i), name, "?", "SELECT 1", database=invented / "database" / name / f"{name}.sqlite")
        for i, name in enumerate(["library", "gauge", "library", "legacy", "gauge"])
    ]


def _run(invented: Path, out: Path, asked: list[str], **more: object) -> dict[str, object]:
    def predict(example: Example) -> Prediction:
        asked.append(example.id)
        return Prediction("SELECT 1" if example.id != "3" else "SELECT 2")

    options = {"dataset": "held_back", "rules": SPIDER, "progress": False, "decoder": "plain"} | more
    return evaluate(_examples(invented), predict, "sqlite", out, **options)  # type: ignore[arg-type]


def test_shards_are_joined_into_the_summary_of_one_run(invented: Path, tmp_path: Path) -> None:
    """Guards that nothing is asked twice, that what a killed shard left is asked, and the order of the files."""
    asked: list[str] = []
    parts = [_run(invented, tmp_path, asked, shard=(number, 2)) for number in (1, 2)]
    assert sorted(asked) == ["0", "1", "2", "3", "4"]
    assert sum(int(str(part["n"])) for part in parts) == 5
    last = next(tmp_path.glob("shard-*/records.jsonl"))
    last.write_text("".join(last.read_text().splitlines(keepends=True)[:-1]))
    joined = _run(invented, tmp_path, asked)
    assert len(asked) == 6
    assert _run(invented, tmp_path, asked) == joined
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 5, "joined once"
    assert joined == _run(invented, tmp_path / "whole", []) | {"shards": 2}
    assert (joined["n"], joined["ex"]) == (5, 0.8)
    assert (tmp_path / "gold.txt").read_bytes() == (tmp_path / "whole" / "gold.txt").read_bytes()


def test_shards_of_another_run_are_not_joined(invented: Path, tmp_path: Path) -> None:
    _run(invented, tmp_path, [], shard=(1, 2), decoder="jacobi")
    with pytest.raises(ResumeError, match="decoder = jacobi, not plain"):
        _run(invented, tmp_path, [])
