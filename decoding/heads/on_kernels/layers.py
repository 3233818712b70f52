"""The decoder layers of a head over one sequence: keys and values in pages, to which rows are added and overwritten."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoding.engine.sampling.numpy_choice import Floats
from decoding.heads.on_kernels.weights import HeadWeights, Workspace
from decoding.targets.int8.buffers import Longs, address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.pages import Pages
from kernels.cpu.head_layer import Layer, Rows, layer_scratch
from kernels.cpu.job import PAGE

ROWS = 64  # that are fed at once, at most


@dataclass(frozen=True, slots=True)
class Seen:
    """Which rows after the context the fed ones see.

    own [rows, ...], int32: ascending; None: every row sees all up to itself. counts [rows], int32: how many. first: rows that
    were fed before; both tables begin with those.
    """

    own: npt.NDArray[np.int32] | None
    counts: npt.NDArray[np.int32]
    first: int = 0

    @classmethod
    def chain(cls, count: int) -> "Seen":
        return cls(None, np.arange(1, count + 1, dtype=np.int32))

    @classmethod
    def block(cls, count: int) -> "Seen":
        """Every row sees all."""
        return cls(np.tile(np.arange(count, dtype=np.int32), (count, 1)), np.full(count, count, np.int32))


class HeadLayers:
    """A sequence's keys and values. norms: in front of each layer's queries, keys and values; None: there is none."""

    def __init__(self, weights: HeadWeights, space: Workspace, norms: Sequence[str | None]) -> None:
        self._space, self._weights = space, weights
        self._layers = [weights.layer(index, norm) for index, norm in enumerate(norms)]
        first = self._layers[0].record
        self._pages = Pages(len(norms) * first.kv_heads, first.dim)
        self._run, self._context = compiled("head_layer:layer_rows"), compiled("head_layer:context_rows")

    def context(self, inputs: Floats, start: int, norm: str) -> None:
        """Add rows that are only seen, at slots and positions from `start` on. inputs [rows, width], which get `norm`."""
        slots = np.arange(start, start + len(inputs))
        for index in range(len(self._layers)):
            layer = self._weights.layer(index, norm)
            self._context(
                layer.at, self._rows(layer.record, inputs, inputs, slots, slots, start, Seen.chain(len(inputs)))
            )

    def run(self, x: Floats, inputs: Floats | None, positions: Longs, before: int, seen: Seen) -> Floats:
        """The stream x [rows, width] after all layers, which it is overwritten with.

        inputs: what the first layer's queries, keys and values are projected from; None: the stream. The rows go to slots from
        `before + seen.first` on, and see the first `before` ones.
        """
        slots = np.arange(before + seen.first, before + seen.first + len(x))
        for index, layer in enumerate(self._layers):
            given = x if inputs is None or index else inputs
            self._run(layer.at, self._rows(layer.record, given, x, positions, slots, before, seen))
        return x

    def _rows(
        self, layer: Layer, inputs: Floats, x: Floats, positions: Longs, slots: Longs, before: int, seen: Seen
    ) -> int:
        """Address of the numbers of `Rows`. What they name must outlive the kernel's call, so it is kept here."""
        count, end = len(x), int(slots[-1]) + 1
        self._pages.reserve(end)
        assert self._weights.angles is not None
        cos, sin = self._weights.angles.at(positions)
        places, score_stride = slots.astype(np.int32), 4 * (-(-end // PAGE) * PAGE + 16)
        rows = Rows(
            fed=count,
            inputs=address(inputs),
            x=address(x),
            cos=address(cos),
            sin=address(sin),
            slots=address(places),
            pages=address(self._pages.addresses),
            before=before,
            first=seen.first,
            own=0 if seen.own is None else address(seen.own),
            own_stride=0 if seen.own is None else seen.own.strides[0],
            counts=address(seen.counts),
            scratch=self._space.scratch(layer_scratch(layer, count, seen.first + count, score_stride)),
            score_stride=score_stride,
        )
        table = np.array(rows, np.int64)
        self._kept = cos, sin, places, inputs, x, seen, table
        return address(table)
