"""Keys and values in pages of 64 positions, and the tables and buffers whose addresses make up a `Job`.

Sequences with the same beginning share pages: a full page below what a sequence has cached never changes. Dropping rows costs
nothing, nor does committing a chain; of a tree path only the rows that lie out of place are moved.
"""

from collections.abc import Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels.cpu.job import (
    BLOCK,
    CHUNK,
    GROUP,
    GROUP_ROWS,
    LINE,
    OUTPUTS,
    PAGE,
    Job,
    Model,
    aligned,
    aligned_copy,
    attention_room,
    lanes_of,
    plane_bytes,
    table_of,
)

_GROUP = 16  # outputs that the kernels' products take together
Page = npt.NDArray[Any]
Views = Sequence[npt.NDArray[Any]]


class Layout(Protocol):
    """How pages hold a position's keys and values."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> npt.DTypeLike: ...

    def new(self) -> Page:
        """A page with no position."""
        ...

    def at(self, page: Page, position: int) -> Views:
        """All that belongs to a position of the page."""
        ...


@dataclass(frozen=True, slots=True)
class FloatLayout:
    """fp32, as `kernels.cpu.tree_attention` reads it.

    Of each plane (a layer and head) keys [dim, PAGE], then values [PAGE, dim].
    """

    planes: int
    dim: int
    dtype = np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.planes, 2, PAGE * self.dim

    def new(self) -> Page:
        """Keys begin as zeros, because scores are taken of whole pages: numbers too small for fp32's normal range would slow
        each product with them a hundredfold.
        """
        page = aligned(self.shape, self.dtype)
        page[:, 0] = 0.0
        return page

    def at(self, page: Page, position: int) -> Views:
        keys = page[:, 0].reshape(self.planes, self.dim, PAGE)
        values = page[:, 1].reshape(self.planes, PAGE, self.dim)
        return keys[:, :, position], values[:, position]


@dataclass(frozen=True, slots=True)
class ByteLayout:
    """Eight bits, as `kernels.cpu.int8_attention` reads it."""

    planes: int
    dim: int
    dtype = np.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        return self.planes, plane_bytes(self.dim)

    def new(self) -> Page:
        """Scales begin as zeros: whatever lies at a position that is not written must be a number."""
        page = aligned(self.shape, self.dtype)
        page[:, 2 * PAGE * self.dim :] = 0
        return page

    def at(self, page: Page, position: int) -> Views:
        each = PAGE * self.dim
        keys = page[:, :each].reshape(self.planes, PAGE // _GROUP, self.dim // 4, _GROUP, 4)
        values = page[:, each : 2 * each].reshape(self.planes, self.dim // _GROUP, PAGE // 4, _GROUP, 4)
        numbers = page[:, 2 * each :].reshape(self.planes, 3, PAGE, 4)
        group, lane = divmod(position, _GROUP)
        return keys[:, group, :, lane], values[:, :, lane, :, group], numbers[:, :, position]


class Pages:
    """A growing list of pages. How many positions are valid is for the owner to know."""

    def __init__(self, layout: Layout, shared: Sequence[Page] = ()) -> None:
        self.layout = layout
        self.pages = list(shared)
        self.addresses = np.array([page.ctypes.data for page in self.pages], np.int64)

    @property
    def size_bytes(self) -> int:
        return sum(page.nbytes for page in self.pages)

    def reserve(self, needed: int, keep: int = 0) -> None:
        """Room for `needed` positions; what is there stays, so `keep` changes nothing."""
        count = -(-needed // PAGE)
        if count > len(self.pages):
            self.pages += [self.layout.new() for _ in range(count - len(self.pages))]
            self.addresses = np.array([page.ctypes.data for page in self.pages], np.int64)

    def of(self, pages: Sequence[Page]) -> "Pages":
        """Full pages that hold a sequence's beginning."""
        return Pages(self.layout, pages)

    def prefix(self, positions: int) -> "Pages":
        """The first positions for another sequence: full pages are shared, the last one is copied where it is not full."""
        full, rest = divmod(positions, PAGE)
        shared = self.pages[:full]
        if rest:
            shared.append(aligned_copy(self.pages[full]))
        return Pages(self.layout, shared)

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """Move position `start + rows[i]` to `start + i`; rows ascend. Those that lie in place are not touched."""
        for index, row in enumerate(rows):
            if row != index:
                for old, new in zip(self._at(start + row), self._at(start + index), strict=True):
                    new[...] = old

    def _at(self, position: int) -> Views:
        return self.layout.at(self.pages[position // PAGE], position % PAGE)


_FEW_ROWS = 64
_HEAD_FIELDS = [Job._fields.index(name) for name in ("head_count", "asked", "head_bytes", "head_scales", "logits")]

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """What one sequence feeds. Row i sees all that went before and `own[i]`, which ends with itself."""

    pages: Pages
    before: int  # positions cached, all of them seen
    tokens: Sequence[int]
    own: Sequence[Sequence[int]] | None  # rows of this part, ascending; None: every row sees all up to itself
    heads: Sequence[int]  # rows of this part after which a token is chosen
    later: Sequence[int] = ()  # rows whose logits may be wanted when the forward is over

    @property
    def counts(self) -> list[int]:
        """How many of its own rows each row sees."""
        return [len(rows) for rows in self.own] if self.own else list(range(1, len(self.tokens) + 1))


@dataclass(frozen=True, slots=True)
class Keys:
    """Temperature and seed for the choice after each wanted row, and the position of what is chosen."""

    temperatures: Sequence[float]
    seeds: Sequence[int]
    positions: Sequence[int]


class HeadBuffers:
    """What the LM head reads and writes."""

    def __init__(self, rows: int, hidden: int, threads: int, keys: Keys, asked: int, vocab: int) -> None:
        """vocab: of which each chunk's spread is wanted, for the likelihood of greedy choices."""
        self._asked = asked
        self.spreads = np.empty((self._asked, -(-vocab // CHUNK), 2), np.float32)
        self.bytes, self.scales = aligned((rows, hidden), np.uint8), np.empty(rows, np.float32)
        self._heats = np.array(keys.temperatures, np.float32)
        self._seeds = np.array(keys.seeds, np.uint64)
        self._positions = np.array(keys.positions, np.int64)
        self._best = np.full((threads, rows), -np.inf, np.float32)
        self.tokens = np.zeros((threads, rows), np.int64)

    def fields(self) -> dict[str, int]:
        """The fields of a `Job`."""
        return {
            "head_count": len(self.scales),
            "asked": self._asked,
            "head_bytes": address(self.bytes),
            "head_scales": address(self.scales),
            "heats": address(self._heats),
            "seeds": address(self._seeds),
            "positions": address(self._positions),
            "threads": len(self._best),
            "best": address(self._best),
            "tokens": address(self.tokens),
            "spreads": address(self.spreads) if self.spreads.size else 0,
        }


class RowTables:
    """Tables by which the kernels find the rows of each sequence."""

    def __init__(self, parts: Sequence[Part], counts: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        self.tokens = np.array([token for part in parts for token in part.tokens], np.int64)
        fed = [len(part.tokens) for part in parts]
        before = np.repeat(np.array([part.before for part in parts], np.int64), fed)
        self._counts = np.array([count for each in counts for count in each], np.int32)
        self.positions = before + self._counts - 1
        row = np.arange(starts[-1]) - np.repeat(np.array(starts[:-1]), fed)
        self.slots = (before + row).astype(np.int32)
        self.pages = np.repeat(np.array([address(part.pages.addresses) for part in parts], np.int64), fed)
        tile_rows = 8 if starts[-1] <= _FEW_ROWS else 16
        self.tiles = np.array(
            [
                (index, first, min(first + tile_rows, count))
                for index, count in enumerate(fed)
                for first in range(0, count, tile_rows)
            ],
            np.int32,
        )
        self._own = [_own(part) for part in parts]
        self.parts = np.array(
            [
                (start, address(part.pages.addresses), part.before, *_place(own), address(self._counts) + 4 * start)
                for part, start, own in zip(parts, starts, self._own, strict=False)
            ],
            np.int64,
        )


def _own(part: Part) -> npt.NDArray[np.int32] | None:
    """[rows, most] which rows of the part each row sees."""
    if part.own is None:
        return None
    own = np.zeros((len(part.own), max(len(rows) for rows in part.own)), np.int32)
    for row, seen in enumerate(part.own):
        own[row, : len(seen)] = seen
    return own


def _place(own: npt.NDArray[np.int32] | None) -> tuple[int, int]:
    """Address and stride of a row in bytes; zeros for a chain."""
    return (0, 0) if own is None else (address(own), own.strides[0])


class Buffers:
    """Buffers for one forward, which grow with what is asked for."""

    def __init__(self, model: Model, threads: int) -> None:
        self._model, self._threads = model, threads
        self._rows = self._positions = 0
        self.x = np.empty((0, model.hidden), np.float32)
        self.job: Job = Job(*[0] * len(Job._fields))

    def of(self, rows: int, positions: int) -> "Buffers":
        """Buffers with room for that many rows, and for scores over that many positions."""
        pages = -(-positions // PAGE)
        if rows > self._rows or pages > self._positions:
            self._rows, self._positions = max(rows, self._rows, _FEW_ROWS), max(2 * pages, self._positions)
            self._make()
        return self

    def _make(self) -> None:
        model, rows = self._model, self._rows
        width = model.heads * model.dim
        score_stride = 4 * (self._positions * PAGE + 16)  # no multiple of 4 kB, or rows would share places in the cache
        sums = 4 * (OUTPUTS + GROUP + rows) + 2 * LINE
        attention = sums + OUTPUTS * score_stride + attention_room(model.dim, self._positions * PAGE)
        products, adapter = 8 * GROUP_ROWS * max(model.dim, CHUNK), 12 * (model.hidden + model.mask_rank)
        scratch = max(attention, products, adapter) + LINE
        scratch = -(-scratch // LINE) * LINE
        blocks = max(width, model.hidden, model.inner) // BLOCK
        self.x = aligned((rows, model.hidden), np.float32)
        byte_stride = max(width, model.hidden, model.inner) + LINE
        self._kept: dict[str, npt.NDArray[Any]] = {
            "x": self.x,
            "bytes": aligned((rows, byte_stride), np.uint8),
            "peaks": aligned((3, blocks, lanes_of(rows)), np.float32),
            "steps": aligned((self._threads, 2, lanes_of(rows)), np.float32),
            "queries": aligned((rows, width), np.float32),
            "mixed": aligned((rows, width), np.float32),
            "inner": aligned((rows, model.inner), np.float32),
            "scratch": aligned((self._threads, scratch), np.uint8),
        }
        self.job = self.job._replace(
            byte_stride=byte_stride,
            peak_blocks=blocks,
            scratch_stride=scratch,
            score_stride=score_stride,
            **{name: address(array) for name, array in self._kept.items()},
        )
        self._head_table = table_of(self.job)

    def head_table(
        self, rows: npt.NDArray[np.uint8], scales: npt.NDArray[np.float32], logits: npt.NDArray[np.float32]
    ) -> Longs:
        """The numbers of a `Job` that computes the logits of rows which are quantized already. All arrays lie in one piece."""
        table = self._head_table.copy()
        table[_HEAD_FIELDS] = len(rows), len(rows), address(rows), address(scales), address(logits)
        return table


class Angles:
    """Cosines and sines of positions, computed for all up to twice the last one when first needed.

    frequencies [head_dim / 2]; dim: of a padded head.
    """

    def __init__(self, frequencies: npt.NDArray[np.float32], dim: int) -> None:
        self._frequencies = frequencies
        self._cos = self._sin = np.zeros((0, dim // 2), np.float32)

    def at(self, positions: Longs) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """[rows, dim / 2] each."""
        end = int(positions.max()) + 1
        if end > len(self._cos):
            half, room = len(self._frequencies), self._cos.shape[1]
            angles = (np.arange(2 * end, dtype=np.float32)[:, None] * self._frequencies).astype(np.float64)
            self._cos, self._sin = (np.zeros((2 * end, room), np.float32) for _ in range(2))
            self._cos[:, :half], self._sin[:, :half] = np.cos(angles), np.sin(angles)
        return self._cos[positions], self._sin[positions]


def address(array: npt.NDArray[Any]) -> int:
    """Address of an array's numbers, which must outlive its use."""
    buffer: Any = array
    try:  # ctypes takes a quarter of the time of numpy's own ways, and a round asks a hundred times
        return addressof(c_char.from_buffer(buffer))
    except (TypeError, ValueError):  # read-only, empty, or not in one piece
        return int(array.__array_interface__["data"][0])
