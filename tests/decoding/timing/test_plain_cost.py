"""The cost of a plain step and of rows is measured once for a model, and kept.

What is told before a large model runs: its memory by its configuration, its speed by the machine's memory.

Guards the cost model: each size is timed with its own rows, at its own context, and nothing stays open.
"""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.experience import RowCosts
from decoding.engine.rounds import Round
from decoding.engine.target import ForwardInput, ForwardOutput
from decoding.methods.adaptive import Adaptive
from decoding.serving import load
from decoding.serving.load import load_text_decoder, memory_needed
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from decoding.targets.fast_target import FastSequence, FastTarget
from decoding.timing import PlainCost, StepCost, measured_bytes_per_s, time_forward
from eval.speed.gpu_kernels import SHAPES, step_bytes
from kernels.cpu.processor import variant
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint


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
    """Else each run of some tests leaves a file in the cache of the person who runs them."""
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


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_times_of_other_kernels_are_not_believed(monkeypatch: pytest.MonkeyPatch, decoder: TextDecoder) -> None:
    in_bytes = load_text_decoder(decoder.name, dtype="int8")
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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tie", [True, False])
def test_memory_is_that_of_the_matrices(tmp_path: Path, family: Family, tie: bool) -> None:
    path = tiny_checkpoint(tmp_path / "tiny", family, tie=tie)
    config = load_config(path)
    sizes = {name: tensor.numel() for name, tensor in read_weights(path) if tensor.dim() == 2}
    assert config.memory_bytes(4, 4) == 4 * sum(sizes.values())
    head = config.vocab_size * config.hidden_size
    assert config.memory_bytes(1, 4) == sum(sizes.values()) + head * (4 if tie else 3)


def test_sizes_of_real_models() -> None:
    """A step of 7B reads what the benchmark of GPUs counts, but for vectors, which are a thousandth."""
    for config in SHAPES.values():
        assert 2 * config.step_parameters == pytest.approx(step_bytes(config, 0), rel=2e-3)
    assert SHAPES["Qwen2.5-Coder-7B"].memory_bytes(1, 4) == pytest.approx(9.25e9, rel=0.01)
    assert SHAPES["Qwen2.5-Coder-7B"].token_bytes(4) == 2 * 28 * 4 * 128 * 4


def test_memory_is_told_before_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = tiny_checkpoint(tmp_path / "tiny"), list[str]()
    load_text_decoder(str(path), dtype="fp32", device="cpu", progress=lambda what, done, total: said.append(what))
    assert memory_needed(path, "fp32") is None and not any("memory" in line or "GB" in line for line in said)
    monkeypatch.setattr(load, "LARGE_BYTES", 1)
    monkeypatch.setattr(load, "free_bytes", lambda: 0)
    load_text_decoder(str(path), dtype="int8", device="cpu", progress=lambda what, done, total: said.append(what))
    assert re.fullmatch(
        r"weights in int8 take 0\.0 GB, each token of a text \d kB; only 0\.0 GB of memory are free", said[0]
    )


def test_doctor_tells_what_speed_to_expect() -> None:
    assert measured_bytes_per_s() > 1e8
    told = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)["expected_speed"]
    found = re.fullmatch(
        r"memory is read at (\S+) GB/s: .* at most (\S+) with the embedded model, (\S+) with 7B .*", told
    )
    assert found is not None
    assert float(found[1]) == pytest.approx(float(found[2]) * 0.134, rel=0.1)


class Slow(FastTarget):
    """Takes a millisecond for each row and for each 10 cached tokens."""

    def score(self, work: Sequence[ForwardInput[FastSequence]]) -> list[ForwardOutput]:
        scores = super().score(work)
        time.sleep(sum(len(one.pending) + len(one.draft) + one.sequence.cached / 10 for one in work) / 1e3)
        return scores

    def close(self, sequence: FastSequence) -> None:
        super().close(sequence)
        self.closed = [*getattr(self, "closed", []), sequence.cached]


def test_each_size_takes_its_own_time(tmp_path: Path) -> None:
    target = Slow.load(tiny_checkpoint(tmp_path))
    times = time_forward(target, [20, 200], [0, 30], repeats=3)
    assert list(times) == [(20, 0), (20, 30), (200, 0), (200, 30)]
    for (context, nodes), ms in times.items():
        assert ms >= 1 + nodes + context / 10
    assert times[20, 0] < times[20, 30] < times[200, 30]
    assert target.closed == [20, 200], "closed, and the context did not grow while it was measured"  # type: ignore[attr-defined]


class Fickle(FastTarget):
    """Takes long after a forward of another size."""

    last = -1

    def score(self, work: Sequence[ForwardInput[FastSequence]]) -> list[ForwardOutput]:
        (nodes,) = (len(one.draft) for one in work)
        if nodes != self.last:
            time.sleep(0.3)
        self.last = nodes
        return super().score(work)


def test_each_size_is_measured_after_its_like(tmp_path: Path) -> None:
    times = time_forward(Fickle.load(tiny_checkpoint(tmp_path)), [20], [0, 30], repeats=2)
    assert max(times.values()) < 300


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    target = FastTarget.load(tiny_checkpoint(tmp_path))
    assert set(time_forward(target, [503], [8], repeats=1)) == {(503, 8)}
    with pytest.raises(ValueError, match="context of 504 and 8 nodes"):
        time_forward(target, [504], [8])
