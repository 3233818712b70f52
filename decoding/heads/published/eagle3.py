"""EAGLE-3 in two layouts: the authors' (`midlayer.*`) and that of `speculators` (`layers.0.*`, settings nested).

`d2t` maps each draft token to the target's id: id = index + d2t[index]. It is absent, or all zeros, if the head drafts the
whole vocabulary. A stored embedding is a copy of the target's and is left out.
"""

from typing import Any

import torch
from torch import Tensor

from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.heads.head import Head, HeadConfig
from decoding.heads.published.layout import Published, attention_settings, filled, same_size, without

_NESTED = ("transformer_layer_config",)
_UNKNOWN = ("norm_before_fc", "fc_norm", "norm_output")


def is_eagle3(found: Published) -> bool:
    """Whether a folder holds an EAGLE-3 head."""
    names = [*found.raw.get("architectures", ()), str(found.raw.get("speculators_model_type"))]
    return any("eagle3" in name.lower() for name in names) or "midlayer.hidden_norm.weight" in found.tensors


def read_eagle3(found: Published, target: ModelConfig) -> Head:
    """Raises HeadMismatch, UnsupportedModel."""
    if strange := [name for name in _UNKNOWN if found.setting(name)]:
        raise UnsupportedModel(f"{found.folder} is an EAGLE-3 head with {strange[0]}, which is not supported")
    hidden = found.needed("hidden_size", inside=_NESTED)
    same_size(found, target, hidden, found.setting("vocab_size", inside=_NESTED))
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor
        for name, tensor in without(found.tensors, "embed_tokens.", "d2t", "t2d")
    }
    if "lm_head.weight" not in tensors:
        raise UnsupportedModel(f"{found.folder} lacks the tensor lm_head.weight")
    ids, tensors["lm_head.weight"] = _drafted(found, tensors["lm_head.weight"], target)
    sizes: dict[str, Any] = attention_settings(found, _NESTED) | {
        "own_lm_head": True,
        "bias": "midlayer.self_attn.q_proj.bias" in tensors,
        "norm_before_residual": bool(found.setting("norm_before_residual", inside=_NESTED)),
        "target_hidden": found.setting("target_hidden_size", inside=_NESTED),
    }
    config = HeadConfig("eagle3", hidden, target.vocab_size, _taps(found, target), sizes, ids)
    return filled(config, tensors, found.folder)


def _taps(found: Published, target: ModelConfig) -> tuple[int, ...]:
    """The states before layers 2, n // 2 and n - 3, unless the settings name others."""
    named = found.setting("eagle_aux_hidden_state_layer_ids", inside=(*_NESTED, "eagle_config"))
    return tuple(named) if named else (2, target.layers // 2, target.layers - 3)


def _drafted(found: Published, lm_head: Tensor, target: ModelConfig) -> tuple[tuple[int, ...], Tensor]:
    """The draft tokens' ids in ascending order (none: the whole vocabulary) and the output rows in that order."""
    if len(lm_head) == target.vocab_size:
        return (), lm_head
    if "d2t" not in found.tensors:
        raise UnsupportedModel(
            f"{found.folder} drafts {len(lm_head)} of {target.vocab_size} tokens and lacks the tensor d2t"
        )
    offsets = found.tensors["d2t"].long()
    if len(offsets) != len(lm_head):
        raise UnsupportedModel(f"{found.folder}: d2t has {len(offsets)} entries, and lm_head {len(lm_head)} rows")
    ids = torch.arange(len(offsets)) + offsets
    if len(ids.unique()) < len(ids) or int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size:  # type: ignore[no-untyped-call]
        raise UnsupportedModel(f"{found.folder}: d2t names tokens twice, or tokens that the model does not have")
    order = ids.argsort()
    return tuple(ids[order].tolist()), lm_head[order]
