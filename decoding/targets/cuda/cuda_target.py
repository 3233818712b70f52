"""`fast_target` on a GPU: the same bookkeeping over `cuda_model`'s forward."""

from collections.abc import Sequence

from torch import Tensor

from decoding.targets.cuda.cuda_model import CudaModel
from decoding.targets.fast_target import FastTarget, Piece
from kernels.ragged import Part


class CudaTarget(FastTarget):
    """A `decoding.engine.target.Target`. Equal to `fast_target` within rounding."""

    model: CudaModel

    def _run(self, pieces: Sequence[Piece], taps: Sequence[int], heads: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        parts = [
            Part(piece.sequence.table.data, piece.before, piece.tokens, piece.positions(), piece.seen())
            for piece in pieces
        ]
        return self.model.feed(parts, taps, heads)
