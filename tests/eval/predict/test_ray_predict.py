"""An evaluation on a Ray cluster: real workers, one of which is killed, and the records of one process."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from eval.accuracy.predict import ray_predict
from eval.accuracy.record import Predict, Prediction
from eval.accuracy.run import evaluate
from eval.datasets.official import Example
from eval.scoring.spider_rules import SPIDER


def _records(out: Path) -> list[dict[str, Any]]:
    return sorted((json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()), key=str)


def test_a_cluster_that_loses_a_worker_leaves_the_records_of_one_process(invented: Path, tmp_path: Path) -> None:
    """Guards against an answer that is lost, asked for twice, or given to another question."""
    pytest.importorskip("ray")
    database = invented / "database" / "library" / "library.sqlite"
    golds = ["SELECT name FROM author", "SELECT count(*) FROM book", "SELECT title FROM book"]
    examples = [Example(str(i), "library", f"question {i}", golds[i % 3], database=database) for i in range(9)]
    died, worked = tmp_path / "died", tmp_path / "worked"
    worked.mkdir()

    def make() -> Predict:
        def predict(example: Example) -> Prediction:
            if example.id == "4" and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            (worked / str(os.getpid())).touch()
            return Prediction(example.gold, None, 12.5, 30, 10)

        return predict

    def run(predict: Predict, threads: int, out: str) -> dict[str, Any]:
        names: dict[str, Any] = {"dataset": "spider", "rules": SPIDER, "progress": False}
        return evaluate(examples, predict, "sqlite", tmp_path / out, at_once=threads, **names)

    with ray_predict("local", 2, make) as (predict, threads):
        summary = run(predict, threads, "cluster")
    assert died.exists() and len(list(worked.iterdir())) >= 2 and not (worked / str(os.getpid())).exists()
    assert summary == run(make(), 1, "alone")
    assert _records(tmp_path / "cluster") == _records(tmp_path / "alone")
