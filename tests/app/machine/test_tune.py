"""`sqlagent tune`: finds a method, keeps it, and from then on it is the default; `doctor` tells."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.assemble import ModelChoice, tuned_key, with_tuned_decoder
from app.cli import app
from app.shared import exit_codes
from app.shared.option_groups import Decoding
from decoding.methods.registry import method_options, ready_methods
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import Settings
from decoding.timing.tuned import ForwardCost, Tuned
from eval.speed.agent_calls import Call, CallRecorder
from eval.speed.replay import autotune
from tests.decoding.models.tiny_models import tiny_checkpoint

TEXTS = ["SELECT name FROM singer WHERE country =", "How many singers are there in each country?"]
FREE = ForwardCost((0, 64), (10.0, 10.1), (0.0, 0.0))  # nodes cost next to nothing: only acceptance decides
DEAR = ForwardCost((0, 64), (10.0, 6400.0), (0.0, 0.0))


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> CallRecorder:
    return CallRecorder(load_text_decoder(str(tiny_checkpoint(tmp_path_factory.mktemp("tiny"), seed=5)), dtype="fp32"))


@pytest.fixture(scope="module")
def calls(recorder: CallRecorder) -> list[Call]:
    settings = Settings(max_new_tokens=24)
    return [Call("generate", text, settings, recorder.inner.generate(text, settings)) for text in TEXTS]


def test_what_nodes_cost_decides_how_much_is_drafted(recorder: CallRecorder, calls: list[Call]) -> None:
    free, dear = (autotune.fastest(recorder, calls, cost) for cost in (FREE, DEAR))
    assert free.speedup > max(1.0, free.speedup_of_default - 0.01)
    assert free.text_tokens_per_forward > dear.text_tokens_per_forward
    assert dear.speedup_of_default < 1


def test_a_method_that_writes_another_text_is_out(recorder: CallRecorder, calls: list[Call]) -> None:
    other = [replace(call, generation=replace(call.generation, text="something else")) for call in calls]
    assert autotune._predict("jacobi", {"block_size": 4}, recorder, calls, FREE).tokens_per_s > 0
    assert autotune._predict("jacobi", {"block_size": 4}, recorder, other, FREE).tokens_per_s == 0


def test_the_space_is_of_options_that_exist() -> None:
    for decoder, space in autotune.SPACE.items():
        assert set(space) <= set(method_options(decoder))


def test_it_is_kept_for_the_next_command_and_doctor_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: CallRecorder, calls: list[Call]
) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path))
    monkeypatch.setattr(autotune, "autotune", lambda *args: autotune.fastest(recorder, calls, FREE))
    tiny, arguments = recorder.name, ("--model", recorder.name, "--dtype", "fp32")
    result = CliRunner().invoke(app, ["tune", *arguments, "--json"])
    assert result.exit_code == exit_codes.OK, result.output
    found = json.loads(result.stdout)
    choice = Decoding(model=tiny, dtype="fp32").choice()
    assert (choice.decoder_name, dict(choice.decoder_options)) == (found["decoder"], found["options"])
    assert Decoding(model=tiny, dtype="bf16").choice().decoder is None
    tuned = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)["tuned"]
    assert any(tiny.replace("/", "_") in line and found["decoder"] in line for line in tuned)
    table = CliRunner().invoke(app, ["tune", *arguments]).stdout
    # Timed anew: on a busy machine another method may be the fastest.
    assert any(f"--decoder {name}" in table for name in ready_methods()) and "x plain step" in table
    assert CliRunner().invoke(app, ["tune", "--decoder", "jacobi"]).exit_code == exit_codes.USAGE


def test_it_never_changes_what_was_asked_for_nor_inexact_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path))
    kept = Tuned("jacobi", {"block_size": 4}, 2.0, 1.5, 3.0, ForwardCost((0, 1), (1.0, 2.0), (0.0, 0.0)))
    for dtype in ("fp32", "bf16", "int8"):
        kept.save(tuned_key(ModelChoice(dtype=dtype, device="cpu")))
    for exact in ("fp32", "int8"):
        tuned = with_tuned_decoder(ModelChoice(dtype=exact, device="cpu"))
        assert (tuned.decoder, tuned.decoder_options) == ("jacobi", {"block_size": 4})
    for named in (
        ModelChoice(dtype="bf16", device="cpu"),
        ModelChoice(dtype="fp32", device="cpu", decoder="plain"),
        ModelChoice(dtype="fp32", device="cpu", decoder_options={"draft_tokens": 2}),
        ModelChoice(dtype="fp32", device="cpu", adapter="none"),
        ModelChoice(dtype="fp32", device="cpu", model="another"),
    ):
        assert with_tuned_decoder(named) is named


def test_recorder_and_model_compute_in_one_thread(recorder: CallRecorder) -> None:
    """Guards against a batcher of its own: the workers of both threads sleep between operators then, at twice a step's time."""
    for decoder in (recorder, recorder.inner):
        decoder.generate("two words", Settings(max_new_tokens=2))
    assert len({decoder.alone(lambda target: threading.get_ident()) for decoder in (recorder, recorder.inner)}) == 1
