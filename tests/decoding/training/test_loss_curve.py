"""Retraining reproduces a recorded run: the embedded model on a small slice of the training data, by the documented command.

Recorded in fp32 on a CPU with AVX2. What differs between machines is the order of sums, far below the tolerance; a learning
rate, a mask or a weight that is wrong is far above it.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from training.run.progress import read_log

FIXTURES = Path(__file__).parent / "fixtures"
TOLERANCE = 0.02  # of the loss of a step


def test_the_recorded_loss_curve_comes_again(tmp_path: Path) -> None:
    recorded = json.loads((FIXTURES / "loss_curve.json").read_text(encoding="utf-8"))
    slice_file = str(FIXTURES / "loss_curve.jsonl")
    command = [slice_file if word == "loss_curve.jsonl" else word for word in recorded["command"].split()]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "run")])
    assert result.exit_code == exit_codes.OK, result.output
    losses = [record["loss"] for record in read_log(tmp_path / "run")]
    assert losses == pytest.approx(recorded["losses"], rel=TOLERANCE)
