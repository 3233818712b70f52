"""Sizes that a new head takes from its target."""

from typing import Any

from decoding.checkpoints.model_config import ModelConfig


def attention_sizes(target: ModelConfig) -> dict[str, Any]:
    """Heads, rotary base and epsilon of the target's own layers."""
    return {
        "heads": target.heads,
        "kv_heads": target.kv_heads,
        "head_dim": target.head_dim,
        "rope_theta": target.rope.theta,
        "eps": target.rms_norm_eps,
    }
