"""The confidence of answers: the fit, its figures, and what the command refuses."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.calibration import read_calibration
from app.cli import app
from eval.accuracy.record import Record
from eval.accuracy.summary import auroc, curve, expected_calibration_error, summarise, trust
from eval.datasets.official import DatasetError
from training import fit_confidence
from training.fit_confidence import MOST_RIGHT, bounds, fit, held_out, logistic, threshold


def record(number: int, right: bool, database: str = "a", **features: float) -> Record:
    return Record(
        id=str(number), db_id=database, question="", gold="", sql="SELECT 1", executed=True, correct=right, em=None, error=None,
        difficulty="", wall_ms=1.0, new_tokens=1, target_forwards=1, steps=[], features=features,
    )  # fmt: skip


def drawn(count: int = 2000, seed: int = 3) -> list[Record]:
    """Answers whose chance to be right is known: 1 / (1 + exp(-(0.5 - 2 doubt))), on four databases."""
    dice = np.random.default_rng(seed)
    doubts, noise, chances = dice.normal(size=count), dice.normal(size=count), dice.random(count)
    right = chances < 1 / (1 + np.exp(-(0.5 - 2 * doubts)))
    return [
        record(i, bool(right[i]), "abcd"[i % 4], doubt=float(doubts[i]), noise=float(noise[i])) for i in range(count)
    ]


def test_the_fit_finds_the_chances_that_the_answers_were_drawn_with() -> None:
    """Guards sign, bias, and the way back from standardised features."""
    found = logistic(drawn(20_000))
    for doubt in (-1.0, 0.0, 0.7):
        wanted = 1 / (1 + np.exp(-(0.5 - 2 * doubt)))
        assert found.confidence({"doubt": doubt, "noise": 0.0}) == pytest.approx(wanted, abs=0.02)
    assert abs(found.weights["noise"].weight) < 0.06


def test_the_fit_stands_where_the_penalised_likelihood_is_greatest() -> None:
    """Guards Newton's steps: at the optimum the gradient is 0, for each weight and the bias."""
    answers = drawn(300)
    found = logistic(answers)
    chances = np.array([found.confidence(answer.features) for answer in answers])
    missed = np.array([answer.correct for answer in answers]) - chances
    assert missed.sum() == pytest.approx(0, abs=1e-2)
    for name, each in found.weights.items():
        inputs = np.array([(answer.features[name] - each.mean) / each.scale for answer in answers])
        assert inputs @ missed == pytest.approx(fit_confidence.PENALTY * each.weight, abs=1e-2)


def test_a_feature_that_some_answers_lack_counts_as_its_mean_there() -> None:
    answers = drawn(400)
    lacking = [record(900 + i, i % 2 == 0, "a", noise=0.0) for i in range(100)]
    found = logistic([*answers, *lacking])
    known = np.mean([answer.features["doubt"] for answer in answers])
    assert found.weights["doubt"].mean == pytest.approx(known, abs=1e-4)
    assert found.confidence({"noise": 0.0}) == found.confidence({"noise": 0.0, "doubt": found.weights["doubt"].mean})


def test_a_database_does_not_judge_itself() -> None:
    """Guards cross-validation: where a feature means the opposite on one database, held-out confidence there is wrong."""
    answers = [record(i, i % 2 == 0, "a", x=float(i % 2 == 0)) for i in range(100)]
    answers += [record(i, i % 2 == 1, "b", x=float(i % 2 == 0)) for i in range(100, 200)]
    assert auroc(held_out(answers, ["a", "b"])) == 0.0


def test_below_the_threshold_most_are_wrong_and_it_is_a_half_at_most() -> None:
    judged = [(0.01 * i, i >= 40) for i in range(100)]
    below = threshold(judged)
    assert below == 0.5  # 40 of 57 would still be allowed
    assert sum(right for confidence, right in judged if confidence < below) <= MOST_RIGHT * 50
    assert threshold([(0.01 * i, True) for i in range(100)]) == 0.0


def test_figures() -> None:
    judged = [(0.1, False), (0.4, True), (0.6, False), (0.9, True)]
    assert auroc(judged) == 0.75
    assert auroc([(0.1, True)]) is None
    assert expected_calibration_error(judged, bins=2) == pytest.approx(0.25)
    assert curve(judged) == {"0.25": 1.0, "0.5": 0.5, "0.75": 0.6667, "1": 0.5}
    found = trust(judged, [True, True, False, False])
    assert found is not None
    assert (found["headed"], found["wrong"], found["wrong_and_headed"]) == (2, 2, 1)
    assert trust([], []) is None


def test_a_runs_summary_says_what_its_confidences_are_worth() -> None:
    def summary(*confidences: float | None) -> object:
        answers = [Record(**asdict(record(i, i > 0)) | {"confidence": each}) for i, each in enumerate(confidences)]
        return summarise(answers, dataset="d", engine="sqlite", model="m", decoder="p")["trust"]

    assert summary(None, None) is None
    assert summary(0.2, 0.8)["auroc"] == 1.0  # type: ignore[index]


def test_too_little_is_refused() -> None:
    with pytest.raises(DatasetError, match="right and wrong answers"):
        fit([record(i, True, "ab"[i % 2], x=1.0) for i in range(20)], {})
    with pytest.raises(DatasetError, match="two databases"):
        fit([record(i, i % 2 == 0, "a", x=1.0) for i in range(20)], {})


def run_folder(tmp_path: Path, dataset: str, second_look: bool = False, name: str = "run") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    settings = {"dataset": dataset, "engine": "sqlite", "questions": "2000:abc", "adapter": "auto"}
    (folder / "settings.json").write_text(json.dumps(settings | {"second_look": second_look}))
    answers = [replace(each, confidence=1 / (1 + np.exp(2 * each.features["doubt"] - 0.5))) for each in drawn()]
    (folder / "records.jsonl").write_text("".join(json.dumps(asdict(each)) + "\n" for each in answers))
    return folder


def test_the_command_writes_what_the_agent_reads(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    folder = run_folder(tmp_path, "held_out")
    done = CliRunner().invoke(app, ["train", "confidence", "--records", str(folder), "--adapter", str(adapter)])
    assert done.exit_code == 0, done.output
    found = read_calibration(adapter)
    assert found is not None
    assert found.about["databases"] == ["a", "b", "c", "d"]
    assert json.loads(done.stdout)["auroc"] == found.about["cross_validated"]["auroc"] > 0.8


@pytest.mark.parametrize(
    ("dataset", "second_look", "says"),
    [
        ("spider", False, "held_out and authored alone"),
        ("authored/sealed", False, "held_out and authored alone"),
        ("held_out", True, "first answers"),
    ],
)
def test_the_command_takes_no_dev_set_and_no_chosen_answers(
    tmp_path: Path, dataset: str, second_look: bool, says: str
) -> None:
    folder = run_folder(tmp_path, dataset, second_look)
    done = CliRunner().invoke(app, ["train", "confidence", "--records", str(folder), "--adapter", str(tmp_path)])
    assert done.exit_code == 2
    assert says in done.stderr
    assert read_calibration(tmp_path) is None


def test_whole_answers_bound_what_may_be_answered(tmp_path: Path) -> None:
    """`--at-least` reads the bounds beside the confidence that gave them."""
    adapter, first = tmp_path / "adapter", run_folder(tmp_path, "held_out")
    adapter.mkdir()
    whole = run_folder(tmp_path, "authored", second_look=True, name="whole")
    given = ["--records", str(first), "--answers", str(whole), "--adapter", str(adapter)]
    done = CliRunner().invoke(app, ["train", "confidence", *given])
    assert done.exit_code == 0, done.output
    found = read_calibration(adapter)
    assert found is not None and json.loads(done.stdout)["answer_from"] == found.answer_from
    assert 0.5 < (found.least_confidence(0.9) or 0) < 0.95
    swapped = ["--records", str(first), "--answers", str(first), "--adapter", str(adapter)]
    assert "whole agent" in CliRunner().invoke(app, ["train", "confidence", *swapped]).stderr


def test_an_answer_is_given_from_where_enough_are_right() -> None:
    """Ties are given or kept back together, and one more wrong answer is counted, so that few answers promise nothing."""
    judged = [(1 - place / 1000, place % 20 != 19) for place in range(400)] + [(0.1, False)] * 600
    found = bounds(judged)
    assert found["0.9"] <= 0.61 and "0.97" not in found
    least = found["0.9"]
    given = [right for confidence, right in judged if confidence >= least]
    assert (given.count(False) + 1) / (len(given) + 1) <= 0.1
    assert "0.5" in found and found["0.5"] > 0.1
    assert bounds([(0.9, True)] * 8) == {"0.5": 0.9, "0.6": 0.9, "0.7": 0.9, "0.75": 0.9, "0.8": 0.9, "0.85": 0.9}
    assert bounds([(0.9, True), (0.9, False)]) == {}
