"""Guards against tensors that are lost, mixed up or trusted too much when a checkpoint is read.

Guards the reader of weights in numpy: numbers, files and identities are those of torch and of its writer, to the byte.

Files that are there whole or not at all, and that are made again when a bit of them has changed.

Guards against a checkpoint being run with a wrong shape, rotary embedding or mask, and against silent near-misses.
"""

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from decoding.checkpoints.arrays import bfloat16, floats, read_arrays, type_name, write_arrays
from decoding.checkpoints.catalog import resolve
from decoding.checkpoints.identity import weights_sha256
from decoding.checkpoints.model_config import Rope, load_config
from decoding.checkpoints.weight_files import base_sha256, read_weights
from decoding.errors import ModelUnavailable, UnsupportedModel
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint


@pytest.mark.parametrize(("sharded", "bin"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize("family", FAMILIES)
def test_reads_every_layout_as_transformers_does(family: Family, sharded: bool, bin: bool, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family, tie=False, sharded=sharded, bin=bin)
    ours = dict(read_weights(resolve(str(path))))
    theirs = AutoModelForCausalLM.from_pretrained(path).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_identity_knows_the_weights_and_not_their_files(tmp_path: Path) -> None:
    layouts = [(False, False), (True, False), (True, True)]
    paths = [tiny_checkpoint(tmp_path / str(i), sharded=sharded, bin=bin) for i, (sharded, bin) in enumerate(layouts)]
    identities = {base_sha256(path) for path in paths}
    assert len(identities) == 1
    assert base_sha256(tiny_checkpoint(tmp_path / "other", seed=1)) not in identities


def test_identity_sees_values_names_shapes_and_types() -> None:
    tensor = torch.arange(4, dtype=torch.float32)
    variants = [
        {"a": tensor},
        {"b": tensor},
        {"a": tensor.reshape(2, 2)},
        {"a": tensor.view(torch.int32)},
        {"a": tensor.flip(0)},
        {"a": tensor, "c": torch.tensor(1.0)},
    ]
    assert len({weights_sha256(variant) for variant in variants}) == len(variants)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, sharded=True)
    (path / "model-00002-of-00005.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="lacks the weight file model-00002-of-00005"):
        resolve(str(path))


@pytest.mark.parametrize("bin", [False, True])
def test_a_truncated_file_is_named(tmp_path: Path, bin: bool) -> None:
    path = tiny_checkpoint(tmp_path, bin=bin)
    file = path / ("pytorch_model.bin" if bin else "model.safetensors")
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(ModelUnavailable, match=f"{file.name} is damaged"):
        list(read_weights(path))


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["EVIL_FOLDER"],)


def test_a_pickle_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path / "evil"))
    path = tiny_checkpoint(tmp_path / "model", bin=True)
    torch.save({"a": _Evil()}, path / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match="more than tensors"):
        list(read_weights(path))
    assert not (tmp_path / "evil").exists()


def test_names_that_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name in ("no-such-model", str(tmp_path / "notes.txt"), str(tmp_path / "empty"), "a/b/c", "missing/file.gguf"):
        with pytest.raises(ModelUnavailable) as caught:
            resolve(name)
        assert "\n" not in str(caught.value)


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


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path, "llama")


def edit(path: Path, **fields: Any) -> Path:
    """Change fields of config.json; None removes one."""
    file = path / "config.json"
    content = {key: value for key, value in (json.loads(file.read_text()) | fields).items() if value is not None}
    file.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_reads_what_transformers_reads(family: Family, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family, tie=False, num_hidden_layers=3, head_dim=16)
    ours, theirs = load_config(path), AutoConfig.from_pretrained(path)
    assert (ours.family, ours.layers, ours.heads) == (family, theirs.num_hidden_layers, theirs.num_attention_heads)
    assert (ours.kv_heads, ours.hidden_size) == (theirs.num_key_value_heads, theirs.hidden_size)
    assert (ours.intermediate_size, ours.vocab_size) == (theirs.intermediate_size, theirs.vocab_size)
    assert (ours.rms_norm_eps, ours.max_positions) == (theirs.rms_norm_eps, theirs.max_position_embeddings)
    assert ours.rope == Rope(theirs.rope_parameters["rope_theta"])
    assert ours.tie_embeddings is theirs.tie_word_embeddings is False
    assert (ours.qkv_bias, ours.output_bias, ours.qk_norm) == (family == "qwen2", False, family == "qwen3")
    assert ours.head_dim == 16


def test_head_dim_and_kv_heads_have_defaults(llama: Path) -> None:
    config = load_config(edit(llama, head_dim=None, num_key_value_heads=None))
    assert (config.head_dim, config.kv_heads) == (8, 4)


def test_both_layouts_of_rope_say_the_same(llama: Path) -> None:
    """transformers 5 writes rope_parameters; nearly every published checkpoint has rope_theta and rope_scaling."""
    want = Rope(500000.0, "llama3", 32.0, 1.0, 4.0, 8192)
    new = edit(llama, rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    assert load_config(new).rope == want
    assert load_config(edit(llama, rope_parameters=None, rope_theta=500000.0, rope_scaling=LLAMA3)).rope == want


def test_linear_scaling_in_its_oldest_spelling(llama: Path) -> None:
    old = edit(llama, rope_parameters=None, rope_scaling={"type": "linear", "factor": 4.0})
    assert load_config(old).rope == Rope(10000.0, "linear", 4.0)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_sliding_windows_as_transformers_lays_them(family: Family, tmp_path: Path) -> None:
    window: dict[str, Any] = {"sliding_window": 16, "max_window_layers": 1, "num_hidden_layers": 3}
    path = tiny_checkpoint(tmp_path, family, use_sliding_window=True, **window)
    assert load_config(path).sliding_windows == (None, 16, 16)
    assert load_config(edit(path, layer_types=None)).sliding_windows == (None, 16, 16)
    assert load_config(edit(path, use_sliding_window=False)).sliding_windows == (None, None, None)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "gpt2"}, "gpt2 model; supported here: llama, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "part of each head"),
    ],
)
def test_refuses_what_would_run_wrongly(llama: Path, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModel, match=says):
        load_config(edit(llama, **fields))


@pytest.mark.parametrize("content", [None, "{", "[]", '{"model_type": "llama"}'])
def test_missing_and_damaged_files_say_so(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelUnavailable) as caught:
        load_config(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
