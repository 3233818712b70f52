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

from decoding.checkpoints.arrays import floats
from decoding.checkpoints.cache_folder import CheckedFiles, cache_root
from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.targets import fast_ops
from decoding.targets.fast_ops import Projection
from decoding.targets.int8 import rounding
from decoding.targets.int8.rounding import HEAD, block_rotation, rotated_layers

_FORMAT = 2  # raised when the integers change, so that older files are made anew
_KEPT = 3  # files: models, and adapters on them


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
    """`rounding.rounded` of a tensor."""
    steps, scale = rounding.rounded(floats(weight))
    return Rounded(torch.from_numpy(steps), torch.from_numpy(scale))


def rounded_model(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """`weights` with transformers' names, rotated (see `decoding.targets.int8.rounding`); the layers' matrices, and a copy
    of the LM head, are stored as NAME.steps and NAME.scale. Where inputs are rotated at every product, so are the matrices.
    Raises UnsupportedModel where the weights do not match the configuration.
    """
    try:
        return dict(_rounded(config, weights))
    except (KeyError, RuntimeError, ValueError) as error:
        raise UnsupportedModel(f"the checkpoint's config.json and weights do not match: {error}") from error


def _rounded(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    head = None
    for name, array in rotated_layers(config, weights):
        tensor = torch.from_numpy(array)
        if name == HEAD or (name == "model.embed_tokens.weight" and config.tie_embeddings):
            head = tensor
        if tensor.dim() == 2 and name.startswith("model.layers."):
            yield from _named(name, _rotated_blocks(tensor) if ".down_proj." in name else tensor)
        else:
            yield name, tensor
    if head is not None:
        yield from _named(HEAD, _rotated_blocks(head))


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
