"""The verifier of readings: its fit, its figures, and what the command refuses."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.calibration import read_verifier
from app.cli import app
from eval.datasets.official import DatasetError
from training.fit_verifier import Candidate, Pool, calibrated, figures, fit


def pools(count: int, databases: str, seed: int = 1, confidence: float = 0.6) -> list[Pool]:
    """Two candidates a question, of which at most one is right; the first number of a summary tells which, with some noise."""
    dice = np.random.default_rng(seed)

    def candidate(right: bool, votes: int) -> Candidate:
        told = [float(dice.normal(2.0 if right else -2.0)), float(dice.normal()), float(dice.normal())]
        return Candidate(f"SELECT {votes}", right, votes, confidence, told)

    kinds = [(True, False), (False, True), (False, False)]
    return [
        Pool(str(i), databases[i % len(databases)], [candidate(first, 5), candidate(second, 3)])
        for i, (first, second) in enumerate(kinds * (count // 3))
    ]


def test_the_fit_finds_what_tells_right_from_wrong() -> None:
    """Guards sign, scale and the way back from standardised summaries."""
    made = fit(pools(3000, "ab"), tap=7, look_below=0.7, margin=0.1, about={"n": 1})
    assert made.tap == 7
    assert made.weights[0] > 0.4 > 10 * abs(made.weights[1:]).max()
    assert made.log_odds(np.array([2, 0, 0], np.float32)) > 0.5 > -1 > made.log_odds(np.array([-2, 0, 0], np.float32))


def test_figures_count_what_choosing_wins_and_loses() -> None:
    made = fit(pools(3000, "ab"), 7, 0.7, 0.1, {})
    found = figures(pools(300, "cd", seed=2), made)
    assert (found["questions"], found["own_answer_right"], found["some_candidate_right"]) == (300, 100, 200)
    assert found["looked_at"] == 300
    assert found["by_verifier"]["won"] > 90 and found["by_verifier"]["lost"] < 10
    assert found["by_verifier"]["right"] == 100 + found["by_verifier"]["won"] - found["by_verifier"]["lost"]


def test_a_confident_answer_is_kept() -> None:
    made = fit(pools(3000, "ab"), 7, 0.7, 0.1, {})
    found = figures(pools(300, "cd", seed=2, confidence=0.8), made)
    assert (found["looked_at"], found["by_verifier"]["won"], found["by_verifier"]["lost"]) == (0, 0, 0)


def test_a_large_margin_keeps_the_own_answer() -> None:
    found = figures(pools(300, "cd", seed=2), fit(pools(3000, "ab"), 7, 0.7, 100.0, {}))
    assert found["by_verifier"]["right"] == found["own_answer_right"]


def test_the_calibration_says_how_often_the_chosen_answers_are_right() -> None:
    """Guards against the odds of all candidates: two thirds of the chosen ones are right here, one third of all."""
    made = fit(pools(3000, "ab"), 7, 0.7, 0.1, {})
    found, figures_of_trust = calibrated(made, pools(600, "cd", seed=2))
    assert found.calibration is not None and found.weights is made.weights
    worth = found.worth(np.array([2, 0, 0], np.float32), 0.6)
    assert found.calibration.confidence({"worth": worth}) > 0.8
    assert found.calibration.confidence({"worth": worth - 6}) < 0.2
    assert figures_of_trust["n"] == 600
    assert figures_of_trust["expected_calibration_error"] < 0.15  # 0.33 if a third were said of each
    assert figures_of_trust["auroc"] > 0.95
    assert figures_of_trust["wrong"] == 600 - figures(pools(600, "cd", seed=2), made)["by_verifier"]["right"]


def test_sure_answers_keep_their_confidence_among_the_figures() -> None:
    made = fit(pools(3000, "ab"), 7, 0.7, 0.1, {})
    sure = [replace(pool, id=f"sure {pool.id}") for pool in pools(300, "cd", seed=3, confidence=0.9999)]
    _, found = calibrated(made, [*pools(300, "cd", seed=2), *sure])
    assert found["n"] == 600
    assert found["right_of_answered"]["0.25"] == pytest.approx(2 / 3, abs=1e-3)  # 100 of 300 are right, ties first


def test_a_calibration_needs_two_databases() -> None:
    with pytest.raises(DatasetError, match="two databases"):
        calibrated(fit(pools(3000, "ab"), 7, 0.7, 0.1, {}), pools(60, "c", seed=2))


def test_candidates_of_one_kind_are_refused() -> None:
    wrong = [Pool("0", "a", [Candidate("SELECT 1", False, 1, 0.5, [1.0])])]
    with pytest.raises(DatasetError, match="right and wrong candidates"):
        fit(wrong, 7, 0.7, 0.1, {})


def written(folder: Path, made: list[Pool], tap: int = 7) -> str:
    folder.mkdir()
    settings = {"adapter": "abc", "tap": tap, "look_below": 0.8, "questions": f"{len(made)}:xyz"}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "records.jsonl").write_text("".join(json.dumps(asdict(each)) + "\n" for each in made))
    return str(folder)


def test_the_command_writes_what_the_agent_reads(tmp_path: Path) -> None:
    fitted, measured = written(tmp_path / "a", pools(300, "ab")), written(tmp_path / "b", pools(30, "cd"))
    command = ["train", "verifier", "--pools", fitted, "--held-out", measured, "--adapter", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = read_verifier(tmp_path)
    assert found is not None
    assert (found.tap, found.about["adapter"], found.about["questions"]) == (7, "abc", ["300:xyz"])
    assert json.loads(done.stdout)["questions"] == json.loads(done.stdout)["confidence"]["n"] == 30
    assert found.calibration is not None and set(found.calibration.weights) == {"worth"}


@pytest.mark.parametrize(
    ("databases", "tap", "says"), [("bc", 7, "databases of --pools (b)"), ("cd", 8, "different taps, 7 and 8")]
)
def test_the_command_refuses_what_would_flatter_or_mix(tmp_path: Path, databases: str, tap: int, says: str) -> None:
    fitted, measured = written(tmp_path / "a", pools(30, "ab")), written(tmp_path / "b", pools(30, databases), tap)
    command = ["train", "verifier", "--pools", fitted, "--held-out", measured, "--adapter", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())
    assert read_verifier(tmp_path) is None


def test_the_command_refuses_to_look_where_the_pools_did_not(tmp_path: Path) -> None:
    command = ["train", "verifier", "--pools", written(tmp_path / "a", pools(30, "ab")), "--adapter", str(tmp_path)]
    done = CliRunner().invoke(app, [*command, "--look-below", "0.9"])
    assert done.exit_code == 2
    assert "below 0.8 alone" in " ".join(done.stderr.split())


def test_answers_that_nothing_was_compared_with_teach_nothing(tmp_path: Path) -> None:
    """Guards the fit against empty summaries, and counts such answers among the questions."""
    sure = [Pool(f"sure {i}", "d", [Candidate("SELECT 1", True, 0, 0.95, [])]) for i in range(10)]
    made = fit([*pools(3000, "ab"), *sure], 7, 0.7, 0.1, {})
    assert np.array_equal(made.weights, fit(pools(3000, "ab"), 7, 0.7, 0.1, {}).weights)
    found = figures([*pools(30, "cd"), *sure], made)
    assert (found["questions"], found["own_answer_right"], found["looked_at"]) == (40, 20, 30)


def test_without_pools_the_command_says_where_they_come_from(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "verifier", "--adapter", str(tmp_path)])
    assert done.exit_code == 2
    assert "collect" in done.stderr
