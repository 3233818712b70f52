"""The cost of a plain step and of rows is measured once for a model, and kept."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from decoding.engine.experience import RowCosts
from decoding.engine.rounds import Round
from decoding.methods.adaptive import Adaptive
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from decoding.timing import PlainCost, StepCost
from tests.decoding.models.tiny_models import tiny_checkpoint


@pytest.fixture
def decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TextDecoder:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))
    return load_text_decoder(str(tiny_checkpoint(tmp_path)))


def test_a_step_costs_more_with_context_and_rows() -> None:
    cost = StepCost(4.0, 0.01, RowCosts((1, 16), (1.0, 1.5)))
    assert cost.at(100) == pytest.approx(5.0) and cost.at(100, 16) == pytest.approx(7.0)
    assert StepCost.read(json.loads(json.dumps(asdict(cost)))) == cost


def test_rows_are_known_once_they_were_measured_and_stay_known(decoder: TextDecoder) -> None:
    first = PlainCost(decoder)
    assert first.row_costs() is None
    found = first.step_cost().rows
    assert found.rows[0] == 1 and found.rows[-1] == 48 and first.row_costs() == found
    assert list(found.steps) == sorted(found.steps)
    assert PlainCost(decoder).row_costs() == found


def test_nothing_is_kept_of_a_model_in_a_temporary_folder(
    decoder: TextDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each run of some tests leaves a file in the cache of whoever runs them."""
    home = tmp_path.with_name(f"{tmp_path.name}-home")
    monkeypatch.setenv("SQLAGENT_HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    PlainCost(decoder).step_cost()
    assert not home.exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    PlainCost(decoder).step_cost()
    assert [each.suffix for each in (home / "costs").iterdir()] == [".json"]


def test_a_file_of_an_older_release_is_measured_again(decoder: TextDecoder) -> None:
    path = PlainCost(decoder)._path()
    path.parent.mkdir(parents=True)
    path.write_text('{"base_ms": 1.0, "per_token_ms": 0.0, "row_ms": 0.1}')
    assert PlainCost(decoder).row_costs() is None
    assert PlainCost(decoder).step_cost().rows.steps[0] == 1.0


def test_times_of_other_kernels_are_not_believed(monkeypatch: pytest.MonkeyPatch, decoder: TextDecoder) -> None:
    in_bytes = load_text_decoder(decoder.name, dtype="int8")
    if in_bytes.target.runtime != "kernels":
        pytest.skip("no kernels of our own run here")
    measured = PlainCost(in_bytes).step_cost()
    assert PlainCost(in_bytes).row_costs() == measured.rows
    monkeypatch.setattr("decoding.targets.int8.compiled.source_key", lambda: "of another version")
    assert PlainCost(in_bytes).row_costs() is None


def forwards(*milliseconds: float) -> list[Round]:
    """Each of them commits three tokens."""
    return [Round(index, 0, 1, 1, (), (), (), (7, 7, 7), (), 0.0, ms, 0.0) for index, ms in enumerate(milliseconds)]


def test_what_was_timed_on_a_busy_machine_is_timed_again(decoder: TextDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    costs, counted = PlainCost(decoder), [30.0, 5.0, 5.0]
    monkeypatch.setattr(
        "decoding.timing.time_forward",
        lambda target, contexts, nodes, repeats=15: {
            (context, node): counted[0] for context in contexts for node in nodes
        },
    )
    assert costs.step_cost().at(100) == 30.0
    assert costs.estimate_ms(forwards(50.0, 28.0, 29.0), 100) == pytest.approx(50.0 + 8 * 28.5), "no forward took 30"
    assert costs.step_cost().at(100) == 30.0
    del counted[0]
    assert costs.estimate_ms(forwards(50.0, 6.0, 7.0), 100) == pytest.approx(50.0 + 8 * 6.5)
    assert costs.step_cost().at(100) == PlainCost(decoder).step_cost().at(100) == 5.0
    assert costs.estimate_ms(forwards(50.0, 6.0, 7.0), 100) == pytest.approx(50.0 + 8 * 5.0)
    assert costs.estimate_ms(forwards(50.0, 1.0, 1.0), 100) == pytest.approx(50.0 + 8 * 1.0)
    assert costs.step_cost().at(100) == 5.0, "once in a process"


def test_methods_are_told_what_was_measured(decoder: TextDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    begin = Adaptive.begin
    monkeypatch.setattr(Adaptive, "begin", lambda self, *args: (told.append(args[2].row_costs), begin(self, *args)))
    measured = RowCosts.even(0.01)
    for known in (None, measured):
        decoder.row_costs = lambda known=known: known  # type: ignore[misc]
        decoder.generate("How many?", SamplingParams("adaptive", max_new_tokens=3))
    assert told == [None, measured]
