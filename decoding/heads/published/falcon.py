"""Falcon-Qwen2.5: a Llama-like configuration with `k_mask`; `layers.N.*` and `lstm.*` besides a copy of the embedding.

The released code feeds a text along the LSTM's batch axis, so each position is a sequence of its own: memory 1.
"""

from typing import Any

from decoding.checkpoints.model_config import ModelConfig
from decoding.heads.head import Head, HeadConfig
from decoding.heads.published.layout import Published, attention_settings, filled, same_size, without


def is_falcon(found: Published) -> bool:
    """Whether a folder holds a Falcon head."""
    return "k_mask" in found.raw or "lstm.weight_ih_l0" in found.tensors


def read_falcon(found: Published, target: ModelConfig) -> Head:
    """Raises HeadMismatch, UnsupportedModel."""
    hidden = found.needed("hidden_size")
    same_size(found, target, hidden, found.setting("vocab_size"))
    tensors = dict(without(found.tensors, "embed_tokens."))
    sizes: dict[str, Any] = attention_settings(found) | {
        "k": found.needed("k_mask"),
        "lstm": hidden,
        "memory": 1,
        "layers": found.setting("num_hidden_layers", default=1),
        "bias": "lstm.bias_ih_l0" in tensors,
        "attention_bias": "layers.0.self_attn.q_proj.bias" in tensors,
    }
    return filled(HeadConfig("falcon", hidden, target.vocab_size, (target.layers,), sizes), tensors, found.folder)
