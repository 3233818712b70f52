"""A model's matrices rounded to 8 bits, which torch multiplies as fp32, for machines that do not run our kernels.

The file in the user's cache that keeps them is here, too: they are made once.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoding.checkpoints.fetch.cache_folder import cache_root
from decoding.checkpoints.fetch.checked_files import CheckedFiles
from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.targets import fast_ops
from decoding.targets.fast_ops import Projection
from decoding.targets.int8.rotation import block_rotation, cosines, stream_rotation

HEAD = "lm_head.weight"
LEVELS = 127
_FORMAT = 2  # raised when the integers change, so that older files are made anew
_KEPT = 3  # files: models, and adapters on them

_NORM_BEFORE = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "input_layernorm") | dict.fromkeys(
    ("gate_proj", "up_proj"), "post_attention_layernorm"
)


class Rounded(NamedTuple):
    """A weight in 8 bits: steps * scale[:, None]."""

    steps: Tensor  # int8 [out, in]
    scale: Tensor  # fp32 [out], of values that bf16 can hold


def projection(weight: Rounded, bias: Tensor | None = None, rotates: bool = False) -> Projection:
    """As `fast_ops.projection`, for x in fp32, which the rounded weights are multiplied with as fp32.

    rotates: x is rotated first, as the weight was (`block_rotation`).
    """
    inner = fast_ops.projection(weight.steps * weight.scale[:, None], bias)
    if not rotates:
        return inner
    rotation = torch.from_numpy(block_rotation(weight.steps.shape[1]))
    return lambda x: inner(rotated(x, rotation))


def rounded(weight: Tensor) -> Rounded:
    """At most 127 steps up and down in every row; they are chosen for the scale as rounded to bf16."""
    scale = (weight.float().abs().amax(1) / LEVELS).clamp_min(torch.finfo(torch.bfloat16).tiny)
    scale = scale.to(torch.bfloat16).float()
    return Rounded((weight.float() / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale)


def rounded_model(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """`weights` with transformers' names, rotated (see `decoding.targets.int8.rotation`); the layers' matrices, and a copy
    of the LM head, are stored as NAME.steps and NAME.scale. Where inputs are rotated at every product, so are the matrices.
    Raises UnsupportedModel where the weights do not match the configuration.
    """
    try:
        return dict(_rounded(config, weights))
    except (KeyError, RuntimeError) as error:
        raise UnsupportedModel(f"the checkpoint's config.json and weights do not match: {error}") from error


def _rounded(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    head = None
    for name, tensor in rotated_layers(config, weights):
        if name == HEAD or (name == "model.embed_tokens.weight" and config.tie_embeddings):
            head = tensor
        if tensor.dim() == 2 and name.startswith("model.layers."):
            yield from _named(name, _rotated_blocks(tensor) if ".down_proj." in name else tensor)
        else:
            yield name, tensor
    if head is not None:
        yield from _named(HEAD, _rotated_blocks(head.float()))


def _rotated_blocks(weight: Tensor) -> Tensor:
    return rotated(weight, torch.from_numpy(block_rotation(weight.shape[1])))


def _named(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    for part, tensor in rounded(weight)._asdict().items():
        yield f"{name}.{part}", tensor


def kept(
    files: Iterable[Path], adapter_sha256: str | None, make: Callable[[], Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """The rounded weights of these files with this adapter, from the cache; else made, and left there.

    Where they cannot be kept (no room, or not ours to write) a line on stderr says so once, and they are used all the same.
    """
    cache, key = CheckedFiles(cache_root() / "int8", ".safetensors", _KEPT), _key(files, adapter_sha256)
    found = _loaded(cache.find(key))
    if found is not None:
        return found
    made = {name: tensor.contiguous() for name, tensor in make().items()}
    try:
        cache.store(key, partial(save_file, made))
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        print(f"sqlagent: the int8 weights cannot be kept in {cache.folder} ({reason}); going on", file=sys.stderr)
    return made


def _loaded(path: Path | None) -> Mapping[str, Tensor] | None:
    """None where there is no file, or another process has removed it."""
    try:
        return load_file(path) if path else None
    except (OSError, SafetensorError):
        return None


def _key(files: Iterable[Path], adapter_sha256: str | None) -> str:
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((_FORMAT, stats, adapter_sha256)).encode()).hexdigest()[:32]


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """x [..., columns], every `len(rotation)` columns multiplied by `rotation`, in its type: in fp64 a row's result, once
    rounded to x's type, does not depend on the other rows.
    """
    return (x.reshape(-1, len(rotation)).to(rotation.dtype) @ rotation).to(x.dtype).view_as(x)


def rotated_layers(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """`weights` with transformers' names, those of the layers in fp32 and rotated; norms whose weights were folded are ones."""
    stored, stream, values = (
        dict(weights),
        torch.from_numpy(stream_rotation(config.hidden_size)).float(),
        torch.from_numpy(cosines(config.head_dim)).float(),
    )
    for name, tensor in stored.items():
        *before, module, kind = name.split(".")
        if before[:2] != ["model", "layers"]:
            yield name, tensor
            continue
        tensor = tensor.float()
        if (norm := _NORM_BEFORE.get(module)) and kind == "weight":
            tensor = rotated(tensor * stored[".".join([*before[:3], norm, kind])].float(), stream)
        if module == "v_proj":
            tensor = _rows_rotated(tensor, values)
        elif module == "o_proj" and kind == "weight":
            tensor = rotated(tensor, values)
        if module in ("o_proj", "down_proj"):
            tensor = _rows_rotated(tensor, stream)
        yield name, torch.ones_like(tensor) if module in _NORM_BEFORE.values() else tensor


def _rows_rotated(tensor: Tensor, rotation: Tensor) -> Tensor:
    """A weight [out, in] or a bias [out] whose output is rotated."""
    return (rotation.t() @ tensor.view(-1, len(rotation), tensor[0].numel())).view_as(tensor)
