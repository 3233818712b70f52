"""An orthogonal rotation of a model's weights, which removes outlier columns from its activations (QuaRot, arXiv 2404.00456).

A few large numbers in a row leave few of the 8 bits to the others. An orthogonal matrix whose entries have similar magnitudes
spreads them; here it is the discrete cosine transform's, which exists in every size. The residual stream and the heads' values
are multiplied by it once: the weights that write and read them are rotated, after the norms' weights have been folded into
them. Up to rounding, the model stays the same; its input is rotated before the first layer and rotated back after the last.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from decoding.checkpoints.model_config import ModelConfig

_WIDEST = 192  # most columns of the stream that are rotated together: more takes longer to load and gains nothing
_BLOCK = 64
_NORM_BEFORE = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "input_layernorm") | dict.fromkeys(
    ("gate_proj", "up_proj"), "post_attention_layernorm"
)


def cosines(size: int) -> Tensor:
    """The orthogonal matrix [size, size] of the discrete cosine transform, in fp64."""
    column = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * torch.outer(column + 0.5, column)) * math.sqrt(2 / size)
    matrix[:, 0] /= math.sqrt(2)
    return matrix


def stream_rotation(hidden: int) -> Tensor:
    """The rotation of a residual stream of that width, block by block; its transpose rotates back."""
    return cosines(max(size for size in range(1, min(hidden, _WIDEST) + 1) if hidden % size == 0))


def block_rotation(columns: int) -> Tensor:
    """For inputs that are rotated at every product, in fp32: small blocks, which take little time."""
    return cosines(min(_BLOCK, columns & -columns)).float()


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """x [..., columns], every `len(rotation)` columns multiplied by `rotation`, in its type: in fp64 a row's result, once
    rounded to x's type, does not depend on the other rows.
    """
    return (x.reshape(-1, len(rotation)).to(rotation.dtype) @ rotation).to(x.dtype).view_as(x)


def rotated_layers(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """`weights` with transformers' names, those of the layers in fp32 and rotated; norms whose weights were folded are ones."""
    stored, stream, values = (
        dict(weights),
        stream_rotation(config.hidden_size).float(),
        cosines(config.head_dim).float(),
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
