"""Texts that are decoded once: what counts as the same text, what is given again, and what is never kept.

An evaluation on a Ray cluster: real workers, one of which is killed, and the records of one process.
"""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from decoding.engine.method import LookupCorpus
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import Completion, SamplingParams, TextDecoder, TextDelta
from eval.accuracy.ablation import ReusingDecoder, key_of
from eval.accuracy.predict import ray_predict
from eval.accuracy.record import Predict, Prediction
from eval.accuracy.run import evaluate
from eval.datasets.official import Example
from eval.scoring.spider_rules import SPIDER
from tests.decoding.models.one_of import OneOf
from tests.decoding.models.tiny_models import tiny_checkpoint

PROMPT = "How many singers are there?"
DRAWN = SamplingParams(temperature=0.9, seed=1, max_new_tokens=12)


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", seed=5)
    return load_text_decoder(str(path), dtype="fp32")


def _draws(seeds: range) -> list[SamplingParams]:
    return [replace(DRAWN, seed=seed) for seed in seeds]


def test_only_what_is_new_is_decoded_and_the_order_is_that_of_the_settings(
    inner: TextDecoder, texts: list[int]
) -> None:
    reusing = ReusingDecoder(inner)
    reusing.samples(PROMPT, _draws(range(2)))
    again = reusing.samples(PROMPT, _draws(range(3, -1, -1)))
    assert texts == [2, 2]
    assert [one.tokens for one in again] == [one.tokens for one in inner.samples(PROMPT, _draws(range(3, -1, -1)))]
    assert [one.rounds[0].sequence for one in again] == [0, 1, 2, 3] and len({one.tokens for one in again}) > 1


def test_a_text_that_is_given_again_comes_with_the_same_pieces(inner: TextDecoder, texts: list[int]) -> None:
    reusing = ReusingDecoder(inner)
    with reusing.reserved(1, lambda: False) as view:  # as the agent asks
        first = list(view.stream(PROMPT, [DRAWN]))
    assert list(reusing.stream(PROMPT, [DRAWN])) == first and len(texts) == 1
    pieces = "".join(piece.text for piece in first if isinstance(piece, TextDelta))
    assert isinstance(first[-1], Completion) and first[-1].text == pieces


CHANGES: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"seed": 2},
    {"max_new_tokens": 13},
    {"stop": ("x",)},
    {"likelihood": True},
    {"other_prompts": ("How many?",)},
    {"decoder": "jacobi"},
    {"decoder": "jacobi", "options": {"block_size": 4}},
]


def test_texts_are_told_apart_by_all_that_they_depend_on() -> None:
    keys = [key_of(PROMPT, replace(DRAWN, **change)) for change in [{}, *CHANGES]] + [key_of("Why?", DRAWN)]
    assert len(set(keys)) == len(keys) and None not in keys


def test_recall_and_the_seed_of_a_greedy_text_change_nothing() -> None:
    recall = LookupCorpus()
    recall.add([1, 2, 3])
    greedy = replace(DRAWN, temperature=0.0)
    assert key_of(PROMPT, replace(DRAWN, recall=recall)) == key_of(PROMPT, DRAWN)
    assert key_of(PROMPT, replace(greedy, seed=7)) == key_of(PROMPT, greedy)


def test_a_constraint_without_a_key_is_asked_again(inner: TextDecoder, texts: list[int]) -> None:
    reusing = ReusingDecoder(inner)
    bound = replace(DRAWN, constraint=OneOf([[5], [6, 7]], inner.tokenizer.stop_ids, inner.target.vocab_size))
    assert reusing.generate(PROMPT, bound).tokens == reusing.generate(PROMPT, bound).tokens
    assert texts == [1, 1]


def test_what_was_called_off_is_not_kept(inner: TextDecoder) -> None:
    reusing, rounds = ReusingDecoder(inner), list[TextDelta]()
    for piece in reusing.stream(PROMPT, [DRAWN], lambda: len(rounds) == 2):
        if isinstance(piece, TextDelta):
            rounds.append(piece)
        else:
            assert piece.finish == "cancelled"
    assert len(rounds) == 2
    assert reusing.generate(PROMPT, DRAWN) == replace(inner.generate(PROMPT, DRAWN), rounds=ANY)


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
