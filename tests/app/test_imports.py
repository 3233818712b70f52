"""What `ask` does not import: torch, transformers and gradio take longer to load than the answer takes to decode."""

import subprocess
import sys
from pathlib import Path

import pytest

from decoding.serving.load import load_text_decoder
from kernels.available import has_gpu, runs_cpu_kernels

ROOT = Path(__file__).resolve().parents[2]
ASKS = """
import atexit, sys
from app.cli import main

def report():
    print("slow:", sorted({"torch", "transformers", "gradio"} & set(sys.modules)))

atexit.register(report)
sys.argv = ["sqlagent", "ask", "How many singers are there?", "--db", sys.argv[1], "--sql-only"]
main()
"""


@pytest.mark.skipif(not runs_cpu_kernels() or has_gpu(), reason="torch computes here")
def test_ask_imports_neither_torch_nor_transformers_nor_gradio(singers: Path) -> None:
    """The embedded model with the defaults, in a fresh process, once the model is packed: that takes torch."""
    load_text_decoder("embedded")
    done = subprocess.run([sys.executable, "-c", ASKS, str(singers)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "select" in done.stdout.lower()
    assert done.stdout.endswith("slow: []\n"), done.stdout
