"""Guards against a checkpoint being run with a wrong shape, rotary embedding or mask, and against silent near-misses."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from decoding.checkpoints.model_config import Rope, load_config
from decoding.errors import ModelUnavailable, UnsupportedModel
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint

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
    assert ours.eos_ids == (2,)
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


def test_eos_of_generation_config_and_config_are_joined(llama: Path) -> None:
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert load_config(llama).eos_ids == (7, 2)


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
