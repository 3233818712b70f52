"""`sqlagent bench kernels` where there is no GPU."""

import pytest
import torch
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_ends_in_one_line() -> None:
    result = CliRunner().invoke(app, ["bench", "kernels"])
    assert result.exit_code == exit_codes.USAGE
    assert result.stdout == ""
    assert result.stderr.startswith("sqlagent: bench kernels needs a CUDA GPU")
    assert result.stderr.count("\n") == 1


def test_a_model_of_a_gpu_needs_none() -> None:
    result = CliRunner().invoke(app, ["bench", "kernels", "--modelled", "H200", "--models", "Qwen3-8B"])
    assert result.exit_code == 0 and "Qwen3-8B" in result.stdout and "no measurement" in result.stderr
