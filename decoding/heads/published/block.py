"""DFlash, DDTree, JetSpec and Domino: one layout of block heads, whose settings are in one of two places.

`dflash_config` holds the settings of block heads; some heads have them at the top level. Layer ids count from 0 and mean a
layer's output, whose index into hidden states is one higher; `speculators` store that index. Fused projections are split.
"""

from typing import Any

import torch

from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.heads.head import Head, HeadConfig, HeadMismatch
from decoding.heads.published.layout import Published, Tensors, attention_settings, filled, same_size, without

_OWN = ("dflash_config", "speculative_config")
_NESTED = (*_OWN, "transformer_layer_config")


def is_block(found: Published) -> bool:
    """Whether a folder holds a block head."""
    return "dflash_config" in found.raw or any("DFlash" in name for name in found.raw.get("architectures", ()))


def read_block(found: Published, target: ModelConfig) -> Head:
    """Raises HeadMismatch, UnsupportedModel."""
    hidden = found.needed("hidden_size", inside=_NESTED)
    same_size(found, target, hidden, found.setting("vocab_size", inside=_NESTED))
    _check(found, target)
    tensors = _parted(found)
    projector = str(found.setting("projector_type", inside=_OWN, default=""))
    causal = bool(found.setting("causal_head", "causal", inside=_OWN, default=False))
    sizes: dict[str, Any] = attention_settings(found, _NESTED) | {
        "layers": found.needed("num_hidden_layers", inside=_NESTED),
        "block_size": found.needed("block_size", inside=_OWN),
        "causal": causal,
        "mask_token": found.needed("mask_token_id", inside=_OWN),
        "shift": bool(found.setting("shift_label", inside=_OWN, default=False)),
    }
    kind = "jetspec" if causal else "dflash"
    if "prefix_gru.weight_ih_l0" in tensors or projector in ("domino", "causal_v5"):
        kind, names = "domino", {"gru": ("gru_hidden_dim", 1024), "rank": ("emb_dim", 256)}
        sizes |= {ours: found.setting(theirs, inside=_OWN, default=usual) for ours, (theirs, usual) in names.items()}
        sizes["own_output"] = True
    return filled(HeadConfig(kind, hidden, target.vocab_size, _taps(found, target), sizes), tensors, found.folder)


def _check(found: Published, target: ModelConfig) -> None:
    """Refuse what would otherwise be read wrongly without an error."""
    layers = found.setting("num_target_layers", inside=_OWN)
    if layers is not None and layers != target.layers:
        raise HeadMismatch(
            f"the head in {found.folder} is for a target of {layers} layers, and the model has {target.layers}"
        )
    if "sliding_attention" in found.setting("layer_types", inside=_NESTED, default=()):
        raise UnsupportedModel(f"{found.folder} is a block head with sliding windows, which is not supported")
    if found.setting("pure_draft_prefix_len", inside=_OWN, default=1) > 1:
        raise UnsupportedModel(f"{found.folder} corrects only its later guesses, which is not supported")


def _taps(found: Published, target: ModelConfig) -> tuple[int, ...]:
    """The taps; by default those of five layers evenly spread from the 1st to the (n - 3)th, counted from 0."""
    indices = found.setting("aux_hidden_state_layer_ids", inside=_NESTED)
    if indices:
        return tuple(indices)
    last = target.layers - 3
    usual = [round(1 + i * (last - 1) / 4) for i in range(5)]
    return tuple(number + 1 for number in found.setting("target_layer_ids", inside=_OWN, default=usual))


def _parted(found: Published) -> Tensors:
    """Tensors with our names: without prefixes and embedding; queries, keys, values, gate and up are separate."""
    width = attention_settings(found, _NESTED)
    keys = width["kv_heads"] * width["head_dim"]
    fused = {
        "qkv_proj": {"q_proj": width["heads"] * width["head_dim"], "k_proj": keys, "v_proj": keys},
        "gate_up_proj": {"gate_proj": width["intermediate"], "up_proj": width["intermediate"]},
    }
    tensors: Tensors = {}
    for name, tensor in without(found.tensors, "embed_tokens.", "lm_head.", "model.embed_tokens."):
        plain = name.removeprefix("model.").removeprefix("logit_head.")
        parts = next((sizes for join, sizes in fused.items() if f".{join}." in plain), None)
        if parts is None:
            tensors[plain] = tensor
            continue
        joined = next(join for join in fused if f".{join}." in plain)
        for part, piece in zip(parts, torch.split(tensor, list(parts.values())), strict=True):
            tensors[plain.replace(joined, part)] = piece
    return tensors
