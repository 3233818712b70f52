"""Samples: which questions are asked."""

from collections import Counter
from pathlib import Path

import pytest

from eval.datasets.official import Example
from eval.datasets.selection import load_dataset, sampled

_SIZES = {"a": 40, "b": 20, "c": 12, "d": 8}
_MANY = [Example(f"{name}{i}", name, "?", "SELECT 1") for name, size in _SIZES.items() for i in range(size)]


def test_a_sample_is_spread_like_the_whole_and_part_of_every_larger_one() -> None:
    chosen = sampled(_MANY, 20)
    assert Counter(example.db_id for example in chosen) == pytest.approx({"a": 10, "b": 5, "c": 3, "d": 2}, abs=1)
    assert chosen == [example for example in _MANY if example in chosen], "in the order given"
    assert set(chosen) < set(sampled(_MANY, 30))
    assert chosen != _MANY[:20]
    assert sampled(_MANY, 500) == _MANY


def test_a_sample_of_spider_is_executable(spider: Path) -> None:
    examples = load_dataset("spider", spider, sample=100)
    assert len(examples) == 100
    assert all(example.executable for example in examples)
    assert len({example.db_id for example in examples}) >= 18
