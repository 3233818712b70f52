"""Guards against GGUF files that load but give nonsense: rows in llama.cpp's order, digits split differently, lost biases."""

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from decoding.checkpoints import gguf
from decoding.checkpoints.cache_folder import models_folder, silent
from decoding.checkpoints.catalog import resolve
from decoding.checkpoints.model_config import Rope, load_config
from decoding.checkpoints.weight_files import base_sha256, read_weights
from decoding.errors import ModelError, ModelUnavailable, UnsupportedModel
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams
from decoding.tokenizer import Tokenizer
from tests.decoding.models.tiny_gguf import write_gguf
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint

TEXTS = [
    "SELECT count(*) FROM t WHERE x > 1234.5",
    "  a   12\n\n\tb  ",
    "naïve 日本 🙂 it's",
    "<|im_start|>user\nhi<|im_end|>",
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))


def convert_tiny(tmp_path: Path, family: Family = "llama", tie: bool = True, **kw: Any) -> tuple[Path, Path]:
    """A checkpoint, and the folder that its GGUF file converts to."""
    original = tiny_checkpoint(tmp_path / "original", family, tie=tie, intermediate_size=64)
    return original, resolve(str(write_gguf(tmp_path / "tiny.gguf", original, **kw)), silent)


@pytest.mark.parametrize(("family", "tie"), list(product(FAMILIES, [True, False])))
def test_the_way_to_gguf_and_back_changes_nothing(family: Family, tie: bool, tmp_path: Path) -> None:
    original, converted = convert_tiny(tmp_path, family, tie)
    assert base_sha256(converted) == base_sha256(original)
    assert load_config(converted) == load_config(original)
    tokens = torch.arange(3, 40)[None]
    models = [AutoModelForCausalLM.from_pretrained(path) for path in (original, converted)]
    assert torch.equal(models[0](tokens).logits, models[1](tokens).logits)


def test_tokenizer_and_chat_template_come_along(tmp_path: Path) -> None:
    original, converted = convert_tiny(tmp_path)
    ours, theirs = Tokenizer(converted), AutoTokenizer.from_pretrained(original)
    for text in TEXTS:
        assert (
            ours.encode(text)
            == theirs(text)["input_ids"]
            == AutoTokenizer.from_pretrained(converted)(text)["input_ids"]
        )
    assert (ours.bos_id, ours.stop_ids) == (1, frozenset({2}))
    messages = [{"role": "user", "content": "hi"}]
    assert ours.chat(messages) == theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.BF16])
def test_quantised_weights_are_what_transformers_reads(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    """transformers' own reading of GGUF, rounded to bfloat16, bit for bit."""
    _, converted = convert_tiny(tmp_path, quantization=kind, llama__vocab_size=320)
    model = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    theirs = load_gguf_checkpoint(str(tmp_path / "tiny.gguf"), return_tensors=True, model_to_load=model)["tensors"]
    ours = dict(read_weights(converted))
    assert {tensor.dtype for tensor in ours.values()} == {torch.bfloat16}
    assert ours.keys() == theirs.keys() - {"lm_head.weight"}
    for name, tensor in ours.items():
        assert torch.equal(tensor, torch.as_tensor(theirs[name]).to(torch.bfloat16)), name


def test_large_models_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "_SHARD_BYTES", 20_000)
    original, converted = convert_tiny(tmp_path)
    assert len(list(converted.glob("model-*.safetensors"))) > 2
    assert base_sha256(converted) == base_sha256(original)
    assert len(AutoModelForCausalLM.from_pretrained(converted).state_dict()) == 21


def llama3_factors(factor: float, head_dim: int = 8, theta: float = 10000.0) -> np.ndarray[Any, Any]:
    """As convert_hf_to_gguf.py computes rope_freqs.weight."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (8192 / wavelengths - 1.0) / (4.0 - 1.0)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wavelengths < 8192 / 4, 1.0, np.where(wavelengths > 8192, factor, between))


def test_llama3_scaling_is_recovered_from_its_frequencies(tmp_path: Path) -> None:
    factors = llama3_factors(32.0, theta=500000.0)
    assert 1 < len(set(factors)) <= 4
    _, converted = convert_tiny(tmp_path, rope_factors=factors, llama__rope__freq_base=500000.0)
    assert load_config(converted).rope == Rope(500000.0, "llama3", 32.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"general__architecture": "gpt2"}, "gpt2 model; supported here: llama, qwen2, qwen3"),
        ({"tokenizer__ggml__pre": "dbrx"}, "pre-tokenizer 'dbrx'"),
        ({"tokenizer__ggml__model": "bert"}, "tokenizer 'bert'"),
        ({"llama__rope__scaling__type": "yarn"}, "'yarn'"),
        ({"rope_factors": np.array([1.0, 2.0, 3.0, 4.0])}, "not Llama 3's"),
        ({"llama__embedding_length": None}, "embedding_length"),
    ],
)
def test_refuses_what_it_cannot_carry_over(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=says):
        convert_tiny(tmp_path, **change)
    assert not list(models_folder().glob("gguf-*")), "nothing may be left that looks like a model"


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_checkpoint(tmp_path / "original"))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ModelUnavailable, match="damaged"):
        resolve(str(path), silent)
    path.write_bytes(b"PK\3\4 nothing of the kind")
    with pytest.raises(ModelUnavailable, match="no GGUF file"):
        resolve(str(path), silent)


def test_a_second_call_converts_nothing(tmp_path: Path) -> None:
    _, converted = convert_tiny(tmp_path)
    before = (converted / "model.safetensors").stat().st_mtime_ns
    assert resolve(str(tmp_path / "tiny.gguf"), silent) == converted
    assert (converted / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *product(["model.safetensors"], ["cut", "flipped", "removed"]),
        ("config.json", "flipped"),
        ("generation_config.json", "removed"),
        ("tokenizer.json", "cut"),
    ],
)
def test_a_damaged_conversion_is_made_anew(tmp_path: Path, name: str, damage: str) -> None:
    _, converted = convert_tiny(tmp_path)
    file = converted / name
    whole = file.read_bytes()
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(whole[:-1] + (b"" if damage == "cut" else bytes([whole[-1] ^ 1])))
    resolve(str(tmp_path / "tiny.gguf"), silent)
    assert file.read_bytes() == whole


def test_a_copied_conversion_is_not_made_anew(tmp_path: Path) -> None:
    _, converted = convert_tiny(tmp_path)
    os.utime(converted / "model.safetensors", (1, 1))
    resolve(str(tmp_path / "tiny.gguf"), silent)
    assert (converted / "model.safetensors").stat().st_mtime == 1


def test_sentencepiece_vocabularies_become_ranked_merges(tmp_path: Path) -> None:
    """Llama 2's kind: no merges in the file, only scores; a space before the text; bytes for what has no token."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abc", "▁a", "ab", "▁ab", "bc"]
    scores = [0.0] * 263 + [-1.0, -3.0, -4.0, -2.0]
    types = [2, 3, 3, *[6] * 256, *[1] * 8]
    sentencepiece = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__scores": scores,
        "tokenizer__ggml__token_type": types,
        "tokenizer__ggml__merges": None,
        "tokenizer__ggml__pre": None,
    }
    _, converted = convert_tiny(tmp_path, **sentencepiece)
    ours = Tokenizer(converted)
    spelled = [ours.token(number) for number in ours.encode("abc aé")]
    assert spelled == ["▁a", "bc", "▁a", "<0xC3>", "<0xA9>"]  # "▁a" first (-1), then "bc" (-2) before "▁ab" (-4)
    assert ours.decode(ours.encode("abc aé")) == "abc aé"
    assert ours.encode("a", special=True)[0] == 1, "these models expect a BOS token"
    assert json.loads((converted / "config.json").read_text())["vocab_size"] == len(tokens)


def test_each_pre_tokenizer_splits_digits_its_own_way(tmp_path: Path) -> None:
    """SmolLM and Qwen 2: single digits; Llama 3: groups of up to three, and a word that is a token needs no merges."""
    original = tiny_checkpoint(tmp_path / "original")
    pieces = {}
    for pre in ("smollm", "qwen2", "llama-bpe", "gpt-2"):
        path = write_gguf(tmp_path / f"{pre}.gguf", original, tokenizer__ggml__pre=pre)
        core = Tokenizer(resolve(str(path), silent))._core
        pieces[pre] = [piece for piece, _ in core.pre_tokenizer.pre_tokenize_str("ab  1234")]
    assert pieces == {
        "smollm": ["ab", "ĠĠ", "1", "2", "3", "4"],
        "qwen2": ["ab", "Ġ", "Ġ", "1", "2", "3", "4"],
        "llama-bpe": ["ab", "Ġ", "Ġ", "123", "4"],
        "gpt-2": ["ab", "Ġ", "Ġ1234"],
    }


def test_unknown_tensors_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="ffn_gate_exps"):
        gguf.hub_name("blk.0.ffn_gate_exps.weight")


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        (GGMLQuantizationType.Q4_K, "llama"),
        (GGMLQuantizationType.Q8_0, "qwen2"),
        (GGMLQuantizationType.Q4_K, "qwen3"),
    ],
)
def test_published_quantisations_run_in_int8(kind: GGMLQuantizationType, family: Family, tmp_path: Path) -> None:
    """A file as people publish them is the model that it was made from, up to its own rounding; every method reads it alike."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
    original = tiny_checkpoint(tmp_path / "tiny", family, initializer_range=0.02, **sizes)
    file = str(write_gguf(tmp_path / "tiny.gguf", original, kind))
    ours, exact = dict(read_weights(resolve(file, silent))), dict(read_weights(original))
    for name, tensor in exact.items():
        worst = 0.5 if tensor.dim() < 2 else 0.15 if kind == GGMLQuantizationType.Q4_K else 0.01
        assert (ours[name].float() - tensor).norm() <= worst * tensor.norm(), name
    decoder = load_text_decoder(file, dtype="int8", device="cpu")
    texts = [
        decoder.generate("one two", SamplingParams(name, max_new_tokens=20)).tokens for name in ("plain", "jacobi")
    ]
    assert texts[0] == texts[1] and len(texts[0]) > 1
