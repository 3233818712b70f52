"""Medusa: `medusa_lm_head.pt` (or `.safetensors`) beside a small config.json, or merged into a whole model (v1.0).

Keys: `{i}.0.linear.weight` [h, h], `{i}.0.linear.bias`, and `{i}.1.weight` [V, h] unless the heads share the model's LM head
(v2); in a merged model, the same with the prefix `medusa_head.`. If a head has several blocks, they all have the same weights.
"""

import re

from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.heads.head import Head, HeadConfig
from decoding.heads.published.layout import Published, Tensors, filled, same_size

FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
PREFIX = "medusa_head."
_BLOCK, _OUTPUT = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)"), re.compile(r"(\d+)\.(\d+)\.weight")


def is_medusa(found: Published) -> bool:
    """Whether a folder holds Medusa heads, alone or merged into a model."""
    return any((found.folder / file).exists() for file in FILES) or any(
        name.startswith(PREFIX) for name in found.tensors
    )


def read_medusa(found: Published, target: ModelConfig) -> Head:
    """Raises HeadMismatch, UnsupportedModel."""
    ours: Tensors = {}
    layers = 1
    for name, tensor in _own(found.tensors).items():
        if block := _BLOCK.fullmatch(name):
            layers = max(layers, int(block[2]) + 1)
            ours.setdefault(f"blocks.{block[1]}.linear.{block[3]}", tensor)
        elif output := _OUTPUT.fullmatch(name):
            ours[f"lm_heads.{output[1]}.weight"] = tensor
        else:
            raise UnsupportedModel(f"{found.folder} has the tensor {name}, which Medusa heads do not have")
    if "blocks.0.linear.weight" not in ours:
        raise UnsupportedModel(f"{found.folder} lacks the tensor 0.0.linear.weight")
    output_rows = ours.get("lm_heads.0.weight")
    same_size(found, target, ours["blocks.0.linear.weight"].shape[1], None if output_rows is None else len(output_rows))
    sizes = {
        "heads": sum(name.endswith(".linear.weight") for name in ours),
        "layers": layers,
        "own_lm_head": output_rows is not None,
    }
    taps = (target.layers,)
    return filled(HeadConfig("medusa", target.hidden_size, target.vocab_size, taps, sizes), ours, found.folder)


def _own(tensors: Tensors) -> Tensors:
    """The heads' tensors, without the model that they may be merged into."""
    merged = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    return merged or tensors
