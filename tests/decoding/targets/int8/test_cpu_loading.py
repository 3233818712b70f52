"""Loading the int8 target: packed and compiled once, kept on disk, and made anew where what is kept is damaged."""

import os
from pathlib import Path

import pytest
import torch

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.errors import UnsupportedModel
from decoding.serving import load
from decoding.serving.load import load_text_decoder
from decoding.targets.fast_target import FastTarget
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.cpu_target import CpuTarget
from decoding.targets.int8.packed_model import damaged_models
from decoding.targets.int8.packing import packed_model
from kernels.cpu.processor import variant
from tests.decoding.targets.test_cpu_target import LONG, TREE, checkpoint, fed, fresh

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")


def test_loading_packs_once_and_falls_back_where_kernels_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path))
    folder = str(checkpoint("llama"))
    _, want = fed(fresh(cache_bytes=0), LONG, TREE)
    for _ in range(2):
        target = load_text_decoder(folder, dtype="int8").target
        assert isinstance(target, CpuTarget)
        assert torch.equal(torch.as_tensor(fed(target, LONG, TREE)[1].logits), torch.as_tensor(want.logits))
        assert target.model.embedding.shape == (320, 32)
    (packed,) = (tmp_path / "packed").iterdir()
    whole = (packed / "matrices.npy").read_bytes()
    flipped = whole[:-100] + bytes([whole[-100] ^ 64]) + whole[-99:]
    for damaged in (flipped, b"damaged"):
        (packed / "matrices.npy").unlink()
        (packed / "matrices.npy").write_bytes(damaged)
        again = load_text_decoder(folder, dtype="int8").target
        assert isinstance(again, CpuTarget)
        assert torch.equal(torch.as_tensor(fed(again, LONG, TREE)[1].logits), torch.as_tensor(want.logits))
        assert (packed / "matrices.npy").read_bytes() == whole
    monkeypatch.setattr(load, "runs_cpu_kernels", lambda: False)
    assert isinstance(load_text_decoder(folder, dtype="int8").target, FastTarget)


def test_a_damage_that_no_size_shows_is_found_by_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path))
    load_text_decoder(str(checkpoint("llama")), dtype="int8")
    assert damaged_models() == []
    (packed,) = (tmp_path / "packed").iterdir()
    file = packed / "matrices.npy"
    whole, times = file.read_bytes(), file.stat()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert damaged_models() == [packed]


def test_damaged_object_code_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path))
    place = "phases:copy"
    compiled.__wrapped__(place)  # type: ignore[attr-defined]
    (file,) = (tmp_path / "kernels").glob("*/*.o")
    whole = file.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:40], b""):
        file.write_bytes(damaged)
        compiled.__wrapped__(place)  # type: ignore[attr-defined]
        assert len(file.read_bytes()) > 40 and file.read_bytes() != damaged


def test_weights_that_do_not_fit_are_refused_in_a_line() -> None:
    weights, config = dict(read_weights(checkpoint("llama"))), load_config(checkpoint("llama"))
    norm = "model.layers.0.input_layernorm.weight"
    for wrong in (weights | {norm: torch.ones(31)}, {name: tensor for name, tensor in weights.items() if name != norm}):
        with pytest.raises(UnsupportedModel, match=r"config.json and weights do not match"):
            packed_model(config, wrong.items())
