"""Linear layers with int8 weights and a scale per output row, for a processor: a quarter of the bytes that a step reads.

The input is rounded to bf16, and so is the output; sums are in fp32. Two ways compute it, by the number of rows:
torch's int8 kernel, whose time grows with the rows, and products with weights unpacked anew, block by block so that they stay
near the processor. No scale is shared among rows of the input, so a row's result knows nothing of its neighbours.
"""

import torch
from torch import Tensor

from decoding.fast_ops import Projection, computes_bf16

FEW_ROWS = 8  # up to here the int8 kernel is faster (AVX2): 0.8 of fp32's time for 1 row, 1.1 for 8, unpacking 1.2
_KERNEL_COLUMNS = 32  # the kernel takes columns by so many
_BLOCK_BYTES = 1 << 20  # of unpacked weights: 0.9 of the time of unpacking a layer at once (17 rows)


class Int8Layers:
    """Makes the int8 projections of one model. They share a scratch buffer, so one thread at a time may run them."""

    def __init__(self) -> None:
        dtype = torch.bfloat16 if computes_bf16() else torch.float32
        self._scratch = torch.empty(_BLOCK_BYTES // dtype.itemsize, dtype=dtype)

    def projection(self, weight: Tensor, bias: Tensor | None = None) -> Projection:
        """As `fast_ops.projection`."""
        rounded, scale = quantised(weight)
        has_kernel = weight.shape[1] % _KERNEL_COLUMNS == 0

        def project(x: Tensor) -> Tensor:
            narrow = x.to(torch.bfloat16)
            if has_kernel and len(x) <= FEW_ROWS:
                out = torch._weight_int8pack_mm(narrow, rounded, scale)
            else:
                out = self._product(narrow, rounded).mul_(scale).to(torch.bfloat16)
            out = out.to(x.dtype)
            return out if bias is None else out.add_(bias)

        return project

    def _product(self, x: Tensor, rounded: Tensor) -> Tensor:
        """x times the integers, in the type of the scratch buffer."""
        x, columns = x.to(self._scratch.dtype), rounded.shape[1]
        if self._scratch.numel() < columns:
            self._scratch = self._scratch.new_empty(columns)
        rows = self._scratch.numel() // columns
        blocks = ((block, self._scratch[: block.numel()].view_as(block)) for block in torch.split(rounded, rows))
        return torch.cat([torch.mm(x, unpacked.copy_(block).t()) for block, unpacked in blocks], 1)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers [out, in] from -127 to 127 and scales [out] in bf16, as torch's kernel wants them: their product is the weight.

    The integers are chosen for the rounded scale, so that its rounding costs nothing; what overshoots 127 then is clamped.
    """
    scale = (weight.float().abs().amax(1) / 127).clamp_min(torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
    rounded = (weight.float() / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
    return rounded, scale
