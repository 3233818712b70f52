"""The compiler must accept what the interpreter runs.

The fused gate against torch's operators.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.gpu.norm import gated, gated_reference
from tests.kernels.ragged_data import DEVICE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests compile")
def test_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled"],
        cwd=ROOT,
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = {line.split(":")[0] for line in done.stdout.splitlines()}
    written = {
        name
        for path in (ROOT / "kernels" / "gpu").glob("*.py")
        for name, after in _functions(path.read_text(encoding="utf-8"))
        if f"{name}[" in after
    }
    assert compiled == written
    products = {line.split(", ", 3)[3] for line in done.stdout.splitlines() if line.startswith("_low_bit_product:")}
    assert products == {"['mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32']"}, "one instruction for any rows"


def _functions(source: str) -> list[tuple[str, str]]:
    """Names of the kernels of a module, with its whole text."""
    lines = source.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("@triton.jit")]
    return [(lines[i + 1].removeprefix("def ").split("(")[0], source) for i in starts]


def test_gates_come_first() -> None:
    gate_up = torch.randn(3, 2 * 1030, device=DEVICE)
    torch.testing.assert_close(gated(gate_up), gated_reference(gate_up), rtol=1e-5, atol=1e-6)
