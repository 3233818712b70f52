"""`sqlagent train`: from a file of groups to an adapter that the decoder loads, stopped and resumed on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.calibration import Calibration, read_calibration
from agent.prompts.compact import PROMPT_VERSION
from app.cli import app
from app.shared import exit_codes
from decoding.checkpoints.adapter import read_adapter
from decoding.serving.load import load_text_decoder
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.packs.groups import group_line
from training.run.progress import read_log

SMALL = ("--pack-tokens", "256", "--dtype", "fp32", "--rank", "4", "--accumulate", "1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "groups.jsonl"
    path.write_text("".join(map(group_line, agent_groups(3, 4))), encoding="utf-8")
    return str(path)


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["train", *args])


def test_trains_exports_and_loads(tiny: str, data: str, tmp_path: Path) -> None:
    """Also: a whole model becomes an adapter; stdout ends in one JSON object; the adapter names its prompts."""
    for name, more in (("low", ()), ("full", ("--full", "--lr", "1e-3"))):
        out = tmp_path / name
        arguments = ("sft", "--data", data, "--held-out", data, "--model", tiny, "--out", str(out), "--steps", "3")
        result = run(*arguments, *SMALL, *more)
        assert result.exit_code == exit_codes.OK, result.output
        outcome = json.loads(result.stdout.splitlines()[-1])
        assert (outcome["steps"], outcome["finished"]) == (3, True)
        trained, shipped = out / ("model" if more else "adapter"), tmp_path / f"shipped-{name}"
        shipped.mkdir()
        Calibration(0.0, {}, 0.5).write(shipped)  # another adapter's: it must not speak for the new one
        result = run("export", str(trained), "--model", tiny, "--out", str(shipped), "--rank", "4")
        assert result.exit_code == exit_codes.OK, result.output
        assert read_calibration(shipped) is None and "confidence of another adapter" in result.stderr
        assert read_adapter(shipped).about.prompt_version == PROMPT_VERSION
        load_text_decoder(tiny, dtype="fp32", adapter=shipped)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ((), exit_codes.USAGE, "a run needs an end"),
        (("--steps", "1", "--stop-token", "nothing"), exit_codes.USAGE, "no stop token"),
        (("--steps", "1", "--pack-tokens", "16"), exit_codes.USAGE, "nothing to train on"),
        (("--steps", "1", "--grow-rank", "8"), exit_codes.USAGE, "give --init-adapter"),
        (("--steps", "1", "--init-adapter", "/nowhere"), exit_codes.MODEL, "holds no adapter"),
        (("--steps", "1", "--targets", "w_proj"), exit_codes.MODEL, "none of the layers w_proj"),
    ],
)
def test_what_cannot_be_is_one_line(
    tiny: str, data: str, tmp_path: Path, change: tuple[str, ...], code: int, message: str
) -> None:
    result = run("sft", "--data", data, "--model", tiny, "--out", str(tmp_path / "out"), *SMALL, *change)
    assert result.exit_code == code
    assert message in result.stderr.splitlines()[-1]


def test_sigterm_leaves_a_checkpoint_to_go_on_from(tiny: str, data: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["train", "sft", "--data", data, "--model", tiny, "--out", str(out), "--steps", "5000", *SMALL]
    command = [sys.executable, "-c", "from app.cli import main; main()", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while len(read_log(out)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    outcome = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
    assert (process.returncode, outcome["finished"]) == (exit_codes.OK, False)
    done = int(outcome["steps"])
    result = run(
        "sft", "--data", data, "--model", tiny, "--out", str(out), "--steps", str(done + 2), *SMALL, "--resume"
    )
    assert json.loads(result.stdout.splitlines()[-1])["steps"] == done + 2
    assert [record["step"] for record in read_log(out)] == list(range(done + 2))
