"""The decoder layers of a head over one sequence, its keys and values in pages; and which rows the nodes of a tree see."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from decoding.engine.sampler import Floats
from decoding.engine.target import DraftCaches
from decoding.heads.on_kernels.weights import HeadWeights, Workspace
from decoding.targets.int8.buffers import FloatLayout, Longs, Pages, address
from decoding.targets.int8.compiled import compiled
from kernels.cpu.head_layer import Layer, Rows, Text, layer_scratch
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


@dataclass(slots=True, eq=False)
class KeptRows:
    """A head's keys and values of a text's first tokens: a `decoding.engine.target.DraftCache`.

    count: rows that are final. is_taken: whether a text adds to them already.
    """

    pages: Pages
    count: int = 0
    is_taken: bool = False

    @property
    def size_bytes(self) -> int:
        return self.pages.size_bytes

    def first(self, count: int) -> "KeptRows":
        count = min(count, self.count)
        return KeptRows(self.pages.prefix(count), count)


def taken_rows(caches: DraftCaches, head: object, new_pages: Callable[[], Pages]) -> KeptRows:
    """The rows of a head among those of a text's sequence, for the text to add to: new ones where there are none, or where
    another drafter of the text has them.
    """
    kept = caches.get(head)
    if not isinstance(kept, KeptRows) or kept.is_taken:
        kept = KeptRows(new_pages())
    caches[head], kept.is_taken = kept, True
    return kept


class HeadLayers:
    """A sequence's keys and values. norms: in front of each layer's queries, keys and values; None: there is none.

    caches: of the sequence, among which the layers' rows are kept, and from which they begin where they are known.
    """

    def __init__(
        self, weights: HeadWeights, space: Workspace, norms: Sequence[str | None], caches: DraftCaches | None = None
    ) -> None:
        self._space, self._weights = space, weights
        self._layers = [weights.layer(index, norm) for index, norm in enumerate(norms)]
        first = self._layers[0].record
        new_pages = partial(Pages, FloatLayout(len(norms) * first.kv_heads, first.dim))
        self.kept = taken_rows({} if caches is None else caches, weights, new_pages)
        self.pages = self.kept.pages
        self._run, self._context = compiled("head_layer:layer_rows"), compiled("head_layer:context_rows")

    def context(self, inputs: Floats, fed: Sequence["Fed"], norm: str) -> None:
        """Add rows that are only seen, at positions like their slots. inputs [rows, width], which get `norm`."""
        tables = self._tables(np.concatenate([each.slots for each in fed]), fed)
        for index in range(len(self._layers)):
            layer = self._weights.layer(index, norm)
            self._context(layer.at, self._rows(layer.record, inputs, inputs, tables))

    def run(self, x: Floats, inputs: Floats | None, positions: Longs, before: int, seen: Seen) -> Floats:
        """`run_together` for rows of this sequence alone."""
        return self.run_together(x, inputs, positions, [Fed(self, len(x), before, seen)])

    def run_together(self, x: Floats, inputs: Floats | None, positions: Longs, fed: Sequence["Fed"]) -> Floats:
        """The stream x [rows, width] after all layers, which it is overwritten with.

        inputs: what the first layer's queries, keys and values are projected from; None: the stream. fed: which rows are
        whose, in their order.
        """
        tables = self._tables(positions, fed)
        for index, layer in enumerate(self._layers):
            given = x if inputs is None or index else inputs
            self._run(layer.at, self._rows(layer.record, given, x, tables))
        return x

    def _tables(self, positions: Longs, fed: Sequence["Fed"]) -> "_Tables":
        """What all layers are told of the rows, for which their sequences get room."""
        assert self._weights.angles is not None
        for each in fed:
            each.layers.pages.reserve(each.end)
        firsts = accumulate((each.rows for each in fed), initial=0)
        return _Tables(
            *self._weights.angles.at(positions),
            slots=np.concatenate([each.slots for each in fed]).astype(np.int32),
            pages=np.repeat([address(each.layers.pages.addresses) for each in fed], [each.rows for each in fed]),
            texts=np.array([each.numbers(first) for each, first in zip(fed, firsts, strict=False)], np.int64),
            score_stride=4 * (-(-max(each.end for each in fed) // PAGE) * PAGE + 16),
            most=max(each.rows for each in fed),
            own=max(each.seen.first + each.rows for each in fed),
        )

    def _rows(self, layer: Layer, inputs: Floats, x: Floats, tables: "_Tables") -> int:
        """Address of the numbers of `Rows`. What they name must outlive the kernel's call, so it is kept here."""
        room = layer_scratch(layer, len(x), tables.most, tables.own, tables.score_stride)
        rows = Rows(
            fed=len(x),
            inputs=address(inputs),
            x=address(x),
            cos=address(tables.cos),
            sin=address(tables.sin),
            slots=address(tables.slots),
            pages=address(tables.pages),
            texts=address(tables.texts),
            text_count=len(tables.texts),
            scratch=self._space.scratch(room),
            score_stride=tables.score_stride,
        )
        table = np.array(rows, np.int64)
        self._kept = tables, inputs, x, table
        return address(table)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The arrays of `Rows`. most, own: rows of one text that are fed, and with those that were fed before, at most."""

    cos: Floats
    sin: Floats
    slots: npt.NDArray[np.int32]
    pages: Longs
    texts: Longs
    score_stride: int
    most: int
    own: int


@dataclass(frozen=True, slots=True)
class Fed:
    """A sequence's part in what layers are fed: its next rows, which go to slots from `before + seen.first` on and see the
    first `before` ones."""

    layers: HeadLayers
    rows: int
    before: int
    seen: Seen

    @property
    def end(self) -> int:
        return self.before + self.seen.first + self.rows

    @property
    def slots(self) -> Longs:
        return np.arange(self.end - self.rows, self.end)

    def numbers(self, row: int) -> Text:
        """For the kernels. row: its first among all."""
        own, counts = self.seen.own, self.seen.counts
        table, stride = (0, 0) if own is None else (address(own), own.strides[0])
        pages = address(self.layers.pages.addresses)
        return Text(row, self.rows, pages, self.before, self.seen.first, table, stride, address(counts))


class TreeRows:
    """The tree of one round. size: rows per node, which see each other and the rows of the node's ancestors.

    hidden: rows that lie before those of the tree and that no node sees.
    """

    def __init__(self, size: int = 1, hidden: int = 0) -> None:
        self._size = size
        self._rows: list[list[int]] = [[]] * hidden  # what each row sees
        self._level: list[list[int]] = [[]]  # what the nodes of the last level see; the root sees none

    def grow(self, parents: Sequence[int]) -> Seen:
        """Add the next level's nodes; parents: in the last level."""
        first, size = len(self._rows), self._size
        self._level = [
            [*self._level[parent], *range(first + index * size, first + (index + 1) * size)]
            for index, parent in enumerate(parents)
        ]
        self._rows += [node for node in self._level for _ in range(size)]
        own = np.zeros((len(self._rows), max(map(len, self._rows))), np.int32)
        for row, seen in enumerate(self._rows):
            own[row, : len(seen)] = seen
        return Seen(own, np.array([len(seen) for seen in self._rows], np.int32), first)
