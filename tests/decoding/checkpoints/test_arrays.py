"""Guards the reader of weights in numpy: numbers, files and identities are those of torch and of its writer, to the byte."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from decoding.checkpoints.arrays import bfloat16, floats, read_arrays, type_name, write_arrays
from decoding.checkpoints.identity import weights_sha256

ODD = [0.0, -0.0, 1.0, 1.00390625, 1.01171875, -2.998, 3.4e38, 1e-40, float("inf"), -float("inf"), float("nan")]


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    large = torch.randn(33, 7, generator=draw)
    return {
        "b.weight": large.bfloat16(),
        "a.weight": large,
        "é": large.half()[:0],
        "codes": torch.arange(6, dtype=torch.uint8).reshape(2, 3),
        "scale": torch.tensor(2.5),
        "order": torch.arange(3),
    }


def test_bfloat16_rounds_as_torch_does() -> None:
    x = np.concatenate([np.float32(ODD), np.random.default_rng(0).standard_normal(10_000, np.float32)])
    ties = (np.arange(1 << 12, dtype=np.uint32) << 15).view(np.float32)
    for each in (x, ties):
        want, known = torch.from_numpy(each).bfloat16(), ~np.isnan(each)
        bits = want.view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(bfloat16(each).view(np.uint16)[known], bits[known])
        np.testing.assert_array_equal(floats(bfloat16(each)), want.float().numpy())


def test_a_file_is_read_and_written_as_torch_does(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "torch", {"format": "pt"})
    arrays = dict(read_arrays(tmp_path / "torch") or ())
    assert {name: (type_name(each), each.shape) for name, each in arrays.items()} == {
        name: (type_name(each), tuple(each.shape)) for name, each in tensors.items()
    }
    assert all(np.array_equal(floats(arrays[name]), floats(tensor)) for name, tensor in tensors.items())
    assert weights_sha256(arrays) == weights_sha256(tensors)
    for chosen in (("a.weight",), ("b.weight",), tuple(tensors)):
        save_file({name: tensors[name] for name in chosen}, tmp_path / "torch", {"format": "pt"})
        write_arrays({name: arrays[name] for name in chosen}, tmp_path / "numpy")
        assert (tmp_path / "numpy").read_bytes() == (tmp_path / "torch").read_bytes()
        assert all(torch.equal(each, tensors[name]) for name, each in load_file(tmp_path / "numpy").items())


def test_a_type_that_numpy_lacks_is_left_to_torch(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4), "b": torch.ones(4).to(torch.float8_e4m3fn)}, tmp_path / "file")
    assert read_arrays(tmp_path / "file") is None


@pytest.mark.parametrize("length", [0, 4, 60, -1])
def test_a_damaged_file_raises_what_the_library_raises(length: int, tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "file")
    os.truncate(tmp_path / "file", length if length >= 0 else (tmp_path / "file").stat().st_size - 1)
    with pytest.raises(SafetensorError):
        read_arrays(tmp_path / "file")
