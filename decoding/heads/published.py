"""Reads published draft heads in their own layouts.

`read_published` recognises the layout of a folder and calls its reader. What is not read as the authors' code computes it is
refused. `LAYOUTS` says with which version of that code each reader was compared;
`tests/decoding/heads/test_published_forwards.py` computes each head a second time.

- Medusa: `{i}.0.linear.weight` [h, h], `{i}.0.linear.bias`, and `{i}.1.weight` [V, h] unless the heads share the model's LM
  head (v2); merged into a whole model (v1.0), with the prefix `medusa_head.`. The blocks of a head must have the same weights.
- EAGLE-3: the authors' names (`midlayer.*`), or those of `speculators` (`layers.0.*`, settings nested). `d2t` maps a draft
  token to the target's: id = index + d2t[index]. A stored embedding is left out, unless it was trained or the head is
  narrower. Layers to read are indices into hidden states, but layers' outputs in `eagle_config` (SpecForge, SGLang, NVIDIA).
- Block heads (DFlash, JetSpec, Domino): settings in `dflash_config` or at the top level. Layer ids count from 0 and mean a
  layer's output, whose index into hidden states is one higher; `speculators` store that index. Fused projections are split.
- Falcon: a Llama-like configuration with `k_mask`. The released code feeds a text along the LSTM's batch axis, so each
  position is a sequence of its own: memory 1.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from decoding.checkpoints.model_config import ModelConfig, read_json, read_rope, read_windows
from decoding.checkpoints.weight_files import read_weights
from decoding.errors import ModelUnavailable, UnsupportedModel
from decoding.heads.head import Head, HeadConfig, HeadMismatch, new_head

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Published:
    """A folder's contents: its configuration (empty if it has none) and its tensors."""

    folder: Path
    raw: Mapping[str, Any]
    tensors: Tensors

    def setting(self, *names: str, default: Any = None, inside: tuple[str, ...] = ()) -> Any:
        """The first of `names` that is set, in the objects `inside` or else at the top level; otherwise `default`."""
        places = [self.raw.get(place) or {} for place in inside] + [self.raw]
        found = (place[name] for name in names for place in places if place.get(name) is not None)
        return next(found, default)

    def settings(self, names: Sequence[str], inside: tuple[str, ...] = ()) -> dict[str, Any]:
        """Those of `names` that are set."""
        found = {name: self.setting(name, inside=inside) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def needed(self, *names: str, inside: tuple[str, ...] = ()) -> Any:
        """Like `setting`, but raises UnsupportedModel if it is not set."""
        value = self.setting(*names, inside=inside)
        if value is None:
            raise UnsupportedModel(f"{self.folder / 'config.json'} does not say {names[0]}: is it a whole head?")
        return value


Reader = Callable[[Published, ModelConfig], Head]


def open_published(folder: Path, *files: str) -> Published:
    """A folder's configuration and tensors; `files` are special names of weight files. Raises ModelUnavailable."""
    raw = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    own = next((folder / name for name in files if (folder / name).exists()), None)
    return Published(folder, raw, _tensors(own) if own else dict(read_weights(folder)))


def _tensors(file: Path) -> Tensors:
    if file.suffix == ".safetensors":
        return load_file(file)
    loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        raise ModelUnavailable(f"{file} holds no tensors by name")
    return loaded


def same_size(found: Published, target: ModelConfig, hidden: int, vocab: int | None = None) -> None:
    """Raise HeadMismatch unless the head's width, and its vocabulary if it has one, are the target's."""
    for what, mine, theirs in (("wide", hidden, target.hidden_size), ("tokens", vocab, target.vocab_size)):
        if mine is not None and mine != theirs:
            raise HeadMismatch(
                f"the head in {found.folder} is for a target of {mine} ({what}), and the model has {theirs}: "
                "choose the model that it was trained on"
            )


def filled(config: HeadConfig, tensors: Mapping[str, Tensor], folder: Path) -> Head:
    """A head of `config` with `tensors`, which have our names. Raises UnsupportedModel, which names what does not fit."""
    head = new_head(config)
    wanted = head.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors:
            raise UnsupportedModel(f"{folder} lacks the tensor {name}")
        if name not in wanted:
            raise UnsupportedModel(
                f"{folder} has the tensor {name}, which a {config.kind} head of its settings has not"
            )
        if wanted[name].shape != tensors[name].shape:
            raise UnsupportedModel(
                f"{folder}: {name} has shape {list(tensors[name].shape)}; its settings say {list(wanted[name].shape)}"
            )
    head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return head.eval().requires_grad_(False)


def without(tensors: Mapping[str, Tensor], *prefixes: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors but those whose names begin with one of `prefixes`."""
    return ((name, tensor) for name, tensor in tensors.items() if not name.startswith(prefixes))


_ROPE = "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "max_position_embeddings"
_WINDOW = "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"


def attention_settings(found: Published, inside: tuple[str, ...] = ()) -> dict[str, Any]:
    """Sizes of decoder layers, from a configuration with transformers' names. Raises UnsupportedModel for what they cannot."""
    heads = found.needed("num_attention_heads", inside=inside)
    if (activation := found.setting("hidden_act", inside=inside, default="silu")) != "silu":
        raise UnsupportedModel(f"{found.folder} has the activation {activation!r}; only silu is supported")
    _no_windows(found, inside)
    try:
        rope = read_rope(found.settings(_ROPE, inside))
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{found.folder}: {error}") from error
    return {
        "heads": heads,
        "kv_heads": found.setting("num_key_value_heads", default=heads, inside=inside),
        "head_dim": found.setting(
            "head_dim", default=found.needed("hidden_size", inside=inside) // heads, inside=inside
        ),
        "intermediate": found.needed("intermediate_size", inside=inside),
        **rope.sizes(),
        "eps": found.setting("rms_norm_eps", default=1e-6, inside=inside),
    }


def _no_windows(found: Published, inside: tuple[str, ...]) -> None:
    """Refuse heads whose layers see only the last tokens."""
    raw = found.settings(_WINDOW, inside)
    kinds = raw.get("layer_types") or ()
    if "sliding_attention" in kinds or any(
        read_windows(raw, found.setting("num_hidden_layers", inside=inside, default=1))
    ):
        raise UnsupportedModel(f"{found.folder} is a head with sliding windows, which is not supported")


def _without_trained_embedding(found: Published, inside: tuple[str, ...]) -> None:
    """Refuse heads whose embedding or LM head is not the target's."""
    lm_head, vocab = found.tensors.get("lm_head.weight"), found.setting("vocab_size", inside=inside)
    if found.setting("embed_requires_grad", inside=inside):
        raise UnsupportedModel(f"{found.folder} is a block head with a trained embedding, which is not supported")
    if "d2t" in found.tensors or (lm_head is not None and vocab is not None and len(lm_head) != vocab):
        raise UnsupportedModel(f"{found.folder} is a block head with an LM head of its own, which is not supported")


def _unlike(found: Published, plain: Mapping[str, Any], inside: tuple[str, ...]) -> None:
    """Refuse settings other than these."""
    for name, value in plain.items():
        if (other := found.setting(name, inside=inside, default=value)) != value:
            raise UnsupportedModel(f"{found.folder} has {name} = {other}, which is not supported")


def _within(found: Published, taps: Sequence[int], target: ModelConfig) -> tuple[int, ...]:
    """The taps, of which each must be a hidden state of the target."""
    if wrong := [tap for tap in taps if not 0 <= tap <= target.layers]:
        raise HeadMismatch(
            f"the head in {found.folder} reads hidden state {wrong[0]} of a model of {target.layers} layers"
        )
    return tuple(taps)


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
    causal = bool(found.setting("causal_head", "causal", "is_causal", inside=_OWN, default=False))
    sizes: dict[str, Any] = attention_settings(found, _NESTED) | {
        "layers": found.needed("num_hidden_layers", inside=_NESTED),
        "block_size": found.needed("block_size", inside=_OWN),
        "causal": causal,
        "mask_token": found.needed("mask_token_id", inside=_OWN),
        "shift": bool(found.setting("shift_label", inside=_OWN, default=False)),
        "attention_bias": bool(found.setting("attention_bias", inside=_NESTED, default=False)),
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
    if "candidate_selector.hidden_projection.weight" in found.tensors:
        raise UnsupportedModel(f"{found.folder} is a head of DFlash 2, which is not supported")
    _without_trained_embedding(found, _NESTED)
    plain = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": None}
    _unlike(found, plain, _OWN)
    if found.setting("pure_draft_prefix_len", inside=_OWN, default=1) > 1:
        raise UnsupportedModel(f"{found.folder} corrects only its later guesses, which is not supported")


def _taps(found: Published, target: ModelConfig) -> tuple[int, ...]:
    """The taps; by default as many layers as the head has, spread evenly from the 1st to the (n - 3)th, counted from 0, or
    the middle one alone.
    """
    indices = found.setting("aux_hidden_state_layer_ids", inside=_NESTED)
    if indices:
        return _within(found, indices, target)
    count, last = found.needed("num_hidden_layers", inside=_NESTED), target.layers - 3
    usual = [round(1 + i * (last - 1) / (count - 1)) for i in range(count)] if count > 1 else [target.layers // 2]
    return _within(
        found, [number + 1 for number in found.setting("target_layer_ids", inside=_OWN, default=usual)], target
    )


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


_EAGLE3_NESTED = ("transformer_layer_config",)
_FLAGS = ("norm_before_fc", "fc_norm", "norm_output")


def is_eagle3(found: Published) -> bool:
    """Whether a folder holds an EAGLE-3 head."""
    names = [*found.raw.get("architectures", ()), str(found.raw.get("speculators_model_type"))]
    return any("eagle3" in name.lower() for name in names) or "midlayer.hidden_norm.weight" in found.tensors


def read_eagle3(found: Published, target: ModelConfig) -> Head:
    """Raises HeadMismatch, UnsupportedModel."""
    inside = (*_EAGLE3_NESTED, "eagle_config")
    hidden = found.needed("hidden_size", inside=_EAGLE3_NESTED)
    same_size(
        found,
        target,
        found.setting("target_hidden_size", inside=_EAGLE3_NESTED, default=hidden),
        found.setting("vocab_size", inside=_EAGLE3_NESTED),
    )
    if found.setting("num_hidden_layers", inside=_EAGLE3_NESTED, default=1) != 1:
        raise UnsupportedModel(f"{found.folder} is an EAGLE-3 head of several layers, which is not supported")
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor
        for name, tensor in without(found.tensors, "embed_tokens.", "d2t", "t2d")
    }
    own_embedding = hidden != target.hidden_size or bool(found.setting("embed_requires_grad", inside=_EAGLE3_NESTED))
    if own_embedding and (embedding := found.tensors.get("embed_tokens.weight")) is not None:
        tensors["embed_tokens.weight"] = embedding
    ids: tuple[int, ...] = ()
    own_lm_head = "lm_head.weight" in tensors
    if own_lm_head:
        ids, tensors["lm_head.weight"] = _drafted(found, tensors["lm_head.weight"], target)
    elif (
        hidden != target.hidden_size
        or found.setting("draft_vocab_size", default=target.vocab_size) != target.vocab_size
    ):
        raise UnsupportedModel(f"{found.folder} lacks the tensor lm_head.weight")
    sizes: dict[str, Any] = attention_settings(found, _EAGLE3_NESTED) | {
        "own_lm_head": own_lm_head,
        "bias": "midlayer.self_attn.q_proj.bias" in tensors,
        "output_bias": "midlayer.self_attn.o_proj.bias" in tensors,
        "qk_norm": "midlayer.self_attn.q_norm.weight" in tensors,
        "norm_before_residual": bool(found.setting("norm_before_residual", inside=_EAGLE3_NESTED)),
        "width": hidden if hidden != target.hidden_size else None,
        "own_embedding": own_embedding,
        **{name: bool(found.setting(name, inside=inside)) for name in _FLAGS},
    }
    config = HeadConfig("eagle3", target.hidden_size, target.vocab_size, _eagle3_taps(found, target), sizes, ids)
    return filled(config, tensors, found.folder)


def _eagle3_taps(found: Published, target: ModelConfig) -> tuple[int, ...]:
    """The states before layers 2, n // 2 and n - 3, unless the settings name others."""
    usual, setting = (2, target.layers // 2, target.layers - 3), "eagle_aux_hidden_state_layer_ids"
    if outputs := (found.raw.get("eagle_config") or {}).get(setting):
        return _within(found, [layer + 1 for layer in outputs], target)
    named = found.setting(setting, inside=_EAGLE3_NESTED)
    if not named or [layer + 1 for layer in named] == list(
        usual
    ):  # converted heads may name the same layers by outputs
        return _within(found, usual, target)
    return _within(found, named, target)


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
            first = ours.setdefault(f"blocks.{block[1]}.linear.{block[3]}", tensor)
            if not torch.equal(first, tensor):
                raise UnsupportedModel(f"{found.folder} has Medusa heads of different blocks, which is not supported")
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


@dataclass(frozen=True, slots=True)
class Layout:
    """How heads of one kind are published. checked: the version of the authors' code with which the reader was compared."""

    matches: Callable[[Published], bool]
    read: Reader
    checked: str


LAYOUTS: Sequence[Layout] = (
    Layout(is_medusa, read_medusa, "FasterDecoding/Medusa v1.0"),
    Layout(is_eagle3, read_eagle3, "SafeAILab/EAGLE 148042c; EAGLE-3.1's norms: speculators' settings"),
    Layout(is_block, read_block, "z-lab/dflash 1012959; hao-ai-lab/JetSpec 2c7b3fa; SpecForge's Domino configuration"),
    Layout(is_falcon, read_falcon, "the released Falcon heads for Qwen2.5"),
)


def read_published(folder: Path, target: ModelConfig) -> Head:
    """The head in a published folder, for a target with the configuration `target`.

    Raises ModelUnavailable if the folder is incomplete, UnsupportedModel if its layout is not known, and HeadMismatch if it is
    for another target.
    """
    found, layout = published_layout(folder)
    return layout.read(found, target)


def published_layout(folder: Path) -> tuple[Published, Layout]:
    """A folder's contents and their layout. Raises ModelUnavailable, UnsupportedModel."""
    found = open_published(folder, *FILES)
    for layout in LAYOUTS:
        if layout.matches(found):
            return found, layout
    raise UnsupportedModel(
        f"{folder} holds no head of a known layout: Medusa, EAGLE-3, DFlash and its relatives, Falcon"
    )
