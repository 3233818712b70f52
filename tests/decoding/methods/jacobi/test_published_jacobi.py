"""Published Jacobi Forcing checkpoints are ordinary Qwen2 causal language models: one of their shape loads and decodes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from decoding.engine.loop import Request, decode
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from decoding.targets.fast_target import FastTarget
from tests.decoding.models.tiny_models import tiny_checkpoint

# What config.json of JacobiForcing/JacobiForcing_Coder_7B_v1 (from Qwen2.5-Coder-7B-Instruct) has beside its sizes.
PUBLISHED = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "use_sliding_window": False, "attention_dropout": 0.0}
# 28 query heads share 4 keys and values: seven to one, as here.
SHAPE = {"hidden_size": 56, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 96}


def made(folder: Path, **layout: bool) -> Path:
    """Untied head; rotary base and token ids as the published files have them."""
    tiny_checkpoint(folder, "qwen2", seed=3, tie=False, num_hidden_layers=3, **SHAPE, **layout)  # type: ignore[arg-type]
    config = json.loads((folder / "config.json").read_text())
    config |= PUBLISHED | {"rope_theta": 1e6, "torch_dtype": "bfloat16"}
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "layout", [{}, {"sharded": True}, {"sharded": True, "bin": True}], ids=["one", "shards", "pickles"]
)
def test_the_published_layout_loads_and_decodes_without_loss(tmp_path: Path, layout: dict[str, bool]) -> None:
    """The coder's files are safetensors, the mathematician's pytorch_model*.bin."""
    folder = made(tmp_path / "coder", **layout)
    decoder = load_text_decoder(str(folder), dtype="fp32", device="cpu")
    assert isinstance(decoder.target, FastTarget) and decoder.adapter is None
    prompt = tuple(range(20, 60))
    texts = {}
    for name, options in (
        ("plain", {}),
        ("jacobi", {"refill": False}),
        ("jacobi_forcing", {"block_size": 8, "blocks": 3}),
    ):
        request = Request(prompt, load_method(name, **options), max_new_tokens=40)
        texts[name] = [token for r in decode(decoder.target, [request]) for token in r.committed]
    assert texts["jacobi"] == texts["jacobi_forcing"] == texts["plain"]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    greedy = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert texts["plain"] == greedy[0, len(prompt) :].tolist()


def test_the_names_are_the_published_ones(tmp_path: Path) -> None:
    folder = made(tmp_path / "coder")
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
    layer = {f"self_attn.{part}_proj.weight" for part in "qkvo"} | {f"self_attn.{part}_proj.bias" for part in "qkv"}
    layer |= {f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    layer |= {"input_layernorm.weight", "post_attention_layernorm.weight"}
    assert names == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} | {
        f"model.layers.{index}.{name}" for index in range(3) for name in layer
    }
