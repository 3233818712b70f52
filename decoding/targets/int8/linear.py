"""Linear layers with int8 weights and int8 inputs: a quarter of the bytes that a step reads, and integer products.

FBGEMM's product is used where torch has it (x86). It takes one scale for all rows of the input, from their least and
greatest number, so a row's result would depend on its neighbours. Here every row is first divided by its own greatest
magnitude, and two more columns hold 1 and -1 in every row (their weights are zero): the scale is always the same, and
since integer sums are exact, a row's result does not depend on the batch.

Elsewhere torch's kernel for int8 weights is used, with inputs rounded to bf16.
"""

import warnings

import torch
from torch import Tensor

from decoding.targets.fast_ops import Projection
from decoding.targets.int8.quantize import Rounded, has_fbgemm, rotated
from decoding.targets.int8.rotation import block_rotation

_MARGIN = 2  # columns that pin the range of the input
_ROWS = 64  # of a buffer at least
_TINY = 1e-30


class Int8Layers:
    """Makes the int8 projections of one model. They share buffers for their inputs, so one thread at a time may run them."""

    def __init__(self) -> None:
        self._inputs: dict[int, Tensor] = {}

    def projection(self, weight: Rounded, bias: Tensor | None = None, rotates: bool = False) -> Projection:
        """As `fast_ops.projection`, for x in fp32. rotates: x is rotated first, as the weight was (`block_rotation`)."""
        inner = self._fbgemm(weight) if has_fbgemm() else _weight_only(weight)
        rotation = torch.from_numpy(block_rotation(weight.steps.shape[1])) if rotates else None

        def project(x: Tensor) -> Tensor:
            out = inner(x if rotation is None else rotated(x, rotation))
            return out if bias is None else out.add_(bias)

        return project

    def _fbgemm(self, weight: Rounded) -> Projection:
        columns, packed, run = weight.steps.shape[1], _packed(weight), torch.ops.quantized.linear_dynamic.default

        def project(x: Tensor) -> Tensor:
            scale = x.abs().amax(1, keepdim=True).clamp_min_(_TINY)
            scaled = self._input(len(x), columns)
            torch.div(x, scale, out=scaled[:, :columns])
            out: Tensor = run(scaled, packed, False)
            return out.mul_(scale)

        return project

    def _input(self, rows: int, columns: int) -> Tensor:
        """[rows, columns + 2], 1 and -1 in the last two columns; written anew by every projection of that width."""
        known = self._inputs.get(columns)
        if known is None or len(known) < rows:
            known = self._inputs[columns] = torch.ones(max(rows, _ROWS), columns + _MARGIN)
            known[:, -1] = -1.0
        return known[:rows]


def _packed(weight: Rounded) -> torch.ScriptObject:
    """FBGEMM's form of the weight with a scale per output row, and no weight for the columns that pin the range."""
    wide = torch.cat([weight.steps, weight.steps.new_zeros(len(weight.steps), _MARGIN)], 1)
    zeros = torch.zeros(len(wide), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch._make_per_channel_quantized_tensor(wide, weight.scale.double(), zeros, 0)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(tensor, None)
    return packed


def _weight_only(weight: Rounded) -> Projection:
    scale = weight.scale.to(torch.bfloat16)
    return lambda x: torch._weight_int8pack_mm(x.to(torch.bfloat16), weight.steps, scale).to(x.dtype)
