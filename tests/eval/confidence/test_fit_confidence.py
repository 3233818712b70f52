"""The confidence of answers: the fit, its figures, and what the command refuses.

The verifier of readings: its fit, its figures, and what the command refuses.

Pools of candidates: what is recorded of a question's readings, and which questions are drawn.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.calibration import Calibration, Vector, read_calibration, read_verifier
from agent.context import AgentContext
from agent.state import State
from app.cli import app
from eval.accuracy.record import Record
from eval.accuracy.summary import auroc, curve, expected_calibration_error, summarise, trust
from eval.datasets.official import HELD_OUT_DATABASES, WITHOUT_ROWS, DatasetError, Example
from tests.eval.answering import AnsweringModel
from training import fit_confidence, fit_verifier
from training.fit_confidence import MOST_RIGHT, bounds, fit, held_out, logistic, threshold
from training.fit_verifier import Candidate, Pool, calibrated, collect, figures, training_examples
from training.fit_verifier import fit as fit_fit_verifier


def record(number: int, right: bool, database: str = "a", **features: float) -> Record:
    return Record(
        id=str(number), db_id=database, question="", gold="", sql="SELECT 1", executed=True, correct=right, error=None,
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


def run_folder(tmp_path: Path, dataset: str, rerank: bool = False, name: str = "run") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    settings = {"dataset": dataset, "engine": "sqlite", "questions": "2000:abc", "adapter": "auto"}
    (folder / "settings.json").write_text(json.dumps(settings | {"rerank": rerank}))
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
    assert (found.about["adapter"], found.about["databases"]) == ("adapter", ["a", "b", "c", "d"])
    assert json.loads(done.stdout)["auroc"] == found.about["cross_validated"]["auroc"] > 0.8


@pytest.mark.parametrize(
    ("dataset", "rerank", "says"),
    [
        ("spider", False, "held_out and authored alone"),
        ("authored/sealed", False, "held_out and authored alone"),
        ("held_out", True, "first answers"),
    ],
)
def test_the_command_takes_no_dev_set_and_no_chosen_answers(
    tmp_path: Path, dataset: str, rerank: bool, says: str
) -> None:
    folder = run_folder(tmp_path, dataset, rerank)
    done = CliRunner().invoke(app, ["train", "confidence", "--records", str(folder), "--adapter", str(tmp_path)])
    assert done.exit_code == 2
    assert says in done.stderr
    assert read_calibration(tmp_path) is None


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
    made = fit_fit_verifier(pools(3000, "ab"), tap=7, look_below=0.7, margin=0.1, about={"n": 1})
    assert made.tap == 7
    assert made.weights[0] > 0.4 > 10 * abs(made.weights[1:]).max()
    assert made.log_odds(np.array([2, 0, 0], np.float32)) > 0.5 > -1 > made.log_odds(np.array([-2, 0, 0], np.float32))


def test_figures_count_what_choosing_wins_and_loses() -> None:
    made = fit_fit_verifier(pools(3000, "ab"), 7, 0.7, 0.1, {})
    found = figures(pools(300, "cd", seed=2), made)
    assert (found["questions"], found["own_answer_right"], found["some_candidate_right"]) == (300, 100, 200)
    assert found["looked_at"] == 300
    assert found["by_verifier"]["won"] > 90 and found["by_verifier"]["lost"] < 10
    assert found["by_verifier"]["right"] == 100 + found["by_verifier"]["won"] - found["by_verifier"]["lost"]


def test_a_confident_answer_is_kept() -> None:
    made = fit_fit_verifier(pools(3000, "ab"), 7, 0.7, 0.1, {})
    found = figures(pools(300, "cd", seed=2, confidence=0.8), made)
    assert (found["looked_at"], found["by_verifier"]["won"], found["by_verifier"]["lost"]) == (0, 0, 0)


def test_a_large_margin_keeps_the_own_answer() -> None:
    found = figures(pools(300, "cd", seed=2), fit_fit_verifier(pools(3000, "ab"), 7, 0.7, 100.0, {}))
    assert found["by_verifier"]["right"] == found["own_answer_right"]


def test_the_calibration_says_how_often_the_chosen_answers_are_right() -> None:
    """Guards against the odds of all candidates: two thirds of the chosen ones are right here, one third of all."""
    made = fit_fit_verifier(pools(3000, "ab"), 7, 0.7, 0.1, {})
    done = calibrated(made, pools(600, "cd", seed=2))
    found, figures_of_trust = done.verifier, done.trusted
    assert found.calibration is not None and found.weights is made.weights
    known = found.features(np.array([2, 0, 0], np.float32), 0.6, votes=0)
    assert found.calibration.confidence(known) > 0.8
    assert found.calibration.confidence(known | {"verifier": known["verifier"] - 6}) < 0.2
    assert figures_of_trust["n"] == 600
    assert figures_of_trust["expected_calibration_error"] < 0.15  # 0.33 if a third were said of each
    assert figures_of_trust["auroc"] > 0.95
    assert figures_of_trust["wrong"] == 600 - figures(pools(600, "cd", seed=2), made)["by_verifier"]["right"]


def test_sure_answers_keep_their_confidence_among_the_figures() -> None:
    made = fit_fit_verifier(pools(3000, "ab"), 7, 0.7, 0.1, {})
    sure = [replace(pool, id=f"sure {pool.id}") for pool in pools(300, "cd", seed=3, confidence=0.9999)]
    found = calibrated(made, [*pools(300, "cd", seed=2), *sure]).trusted
    assert found["n"] == 600
    assert found["right_of_answered"]["0.25"] == pytest.approx(2 / 3, abs=1e-3)  # 100 of 300 are right, ties first


def test_a_calibration_needs_two_databases() -> None:
    with pytest.raises(DatasetError, match="two databases"):
        calibrated(fit_fit_verifier(pools(3000, "ab"), 7, 0.7, 0.1, {}), pools(60, "c", seed=2))


def test_candidates_of_one_kind_are_refused() -> None:
    wrong = [Pool("0", "a", [Candidate("SELECT 1", False, 1, 0.5, [1.0])])]
    with pytest.raises(DatasetError, match="right and wrong candidates"):
        fit_fit_verifier(wrong, 7, 0.7, 0.1, {})


def written(folder: Path, made: list[Pool], tap: int = 7) -> str:
    folder.mkdir()
    settings = {"adapter": "abc", "tap": tap, "look_below": 0.8, "questions": f"{len(made)}:xyz"}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "records.jsonl").write_text("".join(json.dumps(asdict(each)) + "\n" for each in made))
    return str(folder)


def test_the_command_writes_what_the_agent_reads_fit_verifier(tmp_path: Path) -> None:
    fitted = written(tmp_path / "a", pools(300, "ab"))
    measured = [written(tmp_path / "b", pools(30, "cd")), written(tmp_path / "c", pools(60, "ef", seed=3))]
    Calibration(0.0, {}, 0.4).write(tmp_path)
    command = ["train", "verifier", "--pools", fitted, "--adapter", str(tmp_path)]
    done = CliRunner().invoke(app, [*command, "--held-out", measured[0], "--held-out", measured[1]])
    assert done.exit_code == 0, done.output
    found = read_verifier(tmp_path)
    assert found is not None
    assert (found.tap, found.about["adapter"], found.about["questions"]) == (7, "abc", ["300:xyz"])
    said = json.loads(done.stdout)
    assert (said["b"]["questions"], said["c"]["questions"], said["confidence"]["n"]) == (30, 60, 90)
    assert found.calibration is not None and set(found.calibration.weights) == {"verifier", "first", "votes"}
    bounded = read_calibration(tmp_path)
    assert bounded is not None and bounded.answer_from == said["answer_from"]  # which `--at-least` reads
    assert 0 < (bounded.least_confidence(0.7) or 0) < 1


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
    made = fit_fit_verifier([*pools(3000, "ab"), *sure], 7, 0.7, 0.1, {})
    assert np.array_equal(made.weights, fit_fit_verifier(pools(3000, "ab"), 7, 0.7, 0.1, {}).weights)
    found = figures([*pools(30, "cd"), *sure], made)
    assert (found["questions"], found["own_answer_right"], found["looked_at"]) == (40, 20, 30)


def test_without_pools_the_command_says_where_they_come_from(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "verifier", "--adapter", str(tmp_path)])
    assert done.exit_code == 2
    assert "collect" in done.stderr


GOLD, OTHER = "SELECT name FROM author", "SELECT title FROM book"


def test_readings_are_judged_and_a_run_is_continued(
    invented: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against verdicts of other readings, and against asking twice."""

    def query_summaries(states: Sequence[State], toolbox: AgentContext, tap: int) -> list[Vector]:
        return [np.array([len(state["sql"]), tap], np.float32) for state in states]

    monkeypatch.setattr(fit_verifier, "query_summaries", query_summaries)
    database = invented / "database" / "library" / "library.sqlite"
    examples = [Example(str(i), "library", f"question {i}", GOLD, database=database) for i in range(3)]
    model = AnsweringModel(lambda question: OTHER if question == "question 1" else GOLD)
    first = collect(examples[:3], model, 5, tmp_path / "out", {"adapter": "abc"}, plans=2, progress=False)
    assert [(pool.id, [each.right for each in pool.candidates]) for pool in first] == [
        ("0", [True]), ("1", [False]), ("2", [True]),
    ]  # fmt: skip
    assert first[1].candidates[0].summary == [len(OTHER), 5]
    asked = len(model.prompts)
    assert collect(examples[:3], model, 5, tmp_path / "out", {"adapter": "abc"}, plans=2, progress=False) == first
    assert len(model.prompts) == asked


def test_questions_are_drawn_from_training_databases_with_rows(spider: Path) -> None:
    found = training_examples(spider.parent, per_database=2, seed=1)
    databases = [example.db_id for example in found]
    assert not {*databases} & {*HELD_OUT_DATABASES, *WITHOUT_ROWS}
    assert len({*databases}) > 100 and max(map(databases.count, {*databases})) == 2
    assert [one.id for one in found] == [one.id for one in training_examples(spider.parent, 2, 1)]
    assert {example.id for example in found} < {example.id for example in training_examples(spider.parent, 3, 1)}


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
