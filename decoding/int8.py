"""Linear layers with int8 weights and int8 inputs: a quarter of the bytes that a step reads, and integer products.

FBGEMM's product is used where torch has it (x86). It takes one scale for all rows of the input, from their least and
greatest number, so that a row's result would depend on its neighbours. Here every row is divided by its own greatest
magnitude first, and two more columns hold 1 and -1 for every row (their weights are zero): the scale is always the same, and
since sums of integers are exact, a row's result is the same to the bit whatever stands beside it.

Weights use a little more than 7 bits: processors without VNNI add two products up in 16 bits and clip what does not fit, which
takes two neighbours of nearly the largest weight and input. Elsewhere torch's kernel for int8 weights is used, with inputs
rounded to bf16.
"""

import warnings

import torch
from torch import Tensor

from decoding.fast_ops import Projection
from decoding.turned import cosines, turned

_LEVELS = 95  # of a weight's magnitude; 63 is never clipped, and loses twice as much
_BLOCK = 64  # columns that are turned together where that is done at every product
_MARGIN = 2  # columns that pin the range of the input
_ROWS = 64  # of a buffer at least
_TINY = 1e-30


def has_fbgemm() -> bool:
    """Whether torch has FBGEMM's products here. Its makers announce that quantised tensors, which they need, will go."""
    return "fbgemm" in torch.backends.quantized.supported_engines and hasattr(torch, "quantize_per_channel")


class Int8Layers:
    """Makes the int8 projections of one model. They share buffers for their inputs, so one thread at a time may run them."""

    def __init__(self) -> None:
        self._inputs: dict[int, Tensor] = {}

    def projection(self, weight: Tensor, bias: Tensor | None = None, turns: bool = False) -> Projection:
        """As `fast_ops.projection`, for x in fp32. turns: the inputs' columns are of unlike size, see `decoding.turned`."""
        return self._fbgemm(weight, bias, turns) if has_fbgemm() else _weight_only(weight, bias)

    def _fbgemm(self, weight: Tensor, bias: Tensor | None, turns: bool) -> Projection:
        columns, run = weight.shape[1], torch.ops.quantized.linear_dynamic.default
        turn = cosines(min(_BLOCK, columns & -columns)).float() if turns else None
        packed = _packed(weight if turn is None else turned(weight, turn))

        def project(x: Tensor) -> Tensor:
            x = x if turn is None else turned(x, turn)
            scale = x.abs().amax(1, keepdim=True).clamp_min_(_TINY)
            scaled = self._input(len(x), columns)
            torch.div(x, scale, out=scaled[:, :columns])
            out: Tensor = run(scaled, packed, False).mul_(scale)
            return out if bias is None else out.add_(bias)

        return project

    def _input(self, rows: int, columns: int) -> Tensor:
        """[rows, columns + 2], 1 and -1 in the last two columns; written anew by every projection of that width."""
        known = self._inputs.get(columns)
        if known is None or len(known) < rows:
            known = self._inputs[columns] = torch.ones(max(rows, _ROWS), columns + _MARGIN)
            known[:, -1] = -1.0
        return known[:rows]


def _packed(weight: Tensor) -> torch.ScriptObject:
    """FBGEMM's form of the weight with a scale per output row, and no weight for the columns that pin the range."""
    wide = torch.cat([weight, weight.new_zeros(len(weight), _MARGIN)], 1)
    scales = wide.abs().amax(1).clamp_min(_TINY) / _LEVELS
    steps = wide.div_(scales[:, None]).round_().to(torch.int8)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        rounded = torch._make_per_channel_quantized_tensor(steps, scales.double(), zeros, 0)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(rounded, None)
    return packed


def _weight_only(weight: Tensor, bias: Tensor | None) -> Projection:
    rounded, scale = quantised(weight)

    def project(x: Tensor) -> Tensor:
        out = torch._weight_int8pack_mm(x.to(torch.bfloat16), rounded, scale).to(x.dtype)
        return out if bias is None else out.add_(bias)

    return project


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers [out, in] from -127 to 127 and scales [out] in bf16, as torch's kernel wants them: their product is the weight.

    The integers are chosen for the rounded scale, so that its rounding costs nothing; what overshoots 127 then is clamped.
    """
    scale = (weight.float().abs().amax(1) / 127).clamp_min(torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
    rounded = (weight.float() / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
    return rounded, scale
