"""The weights of a model, turned so that no column of its activations stands out (after QuaRot, arXiv 2404.00456).

A few large numbers in a row leave little of 8 bits to the rest. An orthogonal matrix whose entries are alike in magnitude
spreads them; here it is that of the discrete cosine transform, which comes in every size. The residual stream and the heads'
values are multiplied by it once and for all: the weights that write and read them are turned, after the norms' weights have
moved into those. Within rounding the model stays the same; its input is to be turned before the first layer, and turned back
behind the last.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from decoding.checkpoints.model_config import ModelConfig

_WIDEST = 192  # columns of the stream that are turned together, at most: more takes longer to load and gains nothing
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
    """What the residual stream of that width is turned by, block by block; transposed, it rotates back."""
    return cosines(max(size for size in range(1, min(hidden, _WIDEST) + 1) if hidden % size == 0))


def block_rotation(columns: int) -> Tensor:
    """For inputs that are turned at every product, in fp32: blocks of a size that is soon done."""
    return cosines(min(_BLOCK, columns & -columns)).float()


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """x [..., columns], every `len(turn)` columns multiplied by `turn`, in its type: in fp64 a row of x's own type is the same
    to the bit whatever stands beside it.
    """
    return (x.reshape(-1, len(turn)).to(turn.dtype) @ turn).to(x.dtype).view_as(x)


def rotated_layers(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """`weights` with transformers' names, those of the layers in fp32 and turned; norms whose weights moved have ones."""
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


def _rows_rotated(tensor: Tensor, turn: Tensor) -> Tensor:
    """Of a weight [out, in] or a bias [out]: what it writes, turned."""
    return (turn.t() @ tensor.view(-1, len(turn), tensor[0].numel())).view_as(tensor)
