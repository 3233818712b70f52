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
