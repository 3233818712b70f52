"""What is told before a large model runs: its memory by its configuration, its speed by the machine's memory."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.serving import load
from decoding.serving.load import load_text_decoder, memory_needed
from decoding.timing import measured_bytes_per_s
from eval.speed.gpu_kernels import SHAPES, step_bytes
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint


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
