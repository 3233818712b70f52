"""Rows of several sequences in one forward, and the tables that they lie in.

All are in buffers of fixed size and address, so that a captured CUDA graph reads what was filled in last; without CUDA the
function is simply called. Each sequence has its own table of keys and values, [2 * layers * kv_heads, capacity, head_dim], with
the plane of (layer, key or value, head) at ``(2 * layer + is_value) * kv_heads + head``, or such a table in FP8
(`kernels.gpu.tree_attention`). It may move or grow between forwards, because kernels read its address.

A copy to the GPU is only queued: nothing waits for it, and torch's allocator does not give the memory to anybody else before it
is done. A copy back waits for all that was queued before it: a round can afford one or two of those.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(numbers: Iterable[Any] | NDArray[Any], device: torch.device) -> Tensor:
    """Integers (or sequences of them), as int64, or an array, on the device. Does not wait for it."""
    return _pinned(numbers, device).to(device, non_blocking=True)


def send_into(buffer: Tensor, numbers: NDArray[Any]) -> None:
    """Fill the start of a buffer on the device [n, ...] with an array. Does not wait for it."""
    buffer[: len(numbers)].copy_(_pinned(numbers, buffer.device), non_blocking=True)


def fetched_pair(tokens: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids and scores of one shape, on the processor. Waits for the device once."""
    both = torch.stack([tokens.double(), scores.double()]).cpu()  # fp64 holds both exactly
    return both[0].long(), both[1]


def fetched_pairs(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """`fetched_pair` for several. Waits for the device once."""
    flat = [(ids.flatten(), values.flatten()) for ids, values in pairs]
    tokens, scores = fetched_pair(torch.cat([ids for ids, _ in flat]), torch.cat([values for _, values in flat]))
    ends = list(accumulate((ids.numel() for ids, _ in pairs), initial=0))
    places = [(slice(*ends[at : at + 2]), ids.shape) for at, (ids, _) in enumerate(pairs)]
    return [(tokens[place].view(shape), scores[place].view(shape)) for place, shape in places]


def fetched(tensor: Tensor) -> list[Any]:
    """The numbers of a tensor. Waits for the device."""
    numbers: list[Any] = tensor.tolist()
    return numbers


def _pinned(numbers: Iterable[Any] | NDArray[Any], device: torch.device) -> Tensor:
    host = torch.from_numpy(numbers if isinstance(numbers, np.ndarray) else np.array(list(numbers), dtype=np.int64))
    return host.pin_memory() if device.type == "cuda" else host


Result = TypeVar("Result")
Made = TypeVar("Made")
_WARM_UPS = 2  # libraries allocate their workspaces and Triton compiles, neither of which a capture allows


class Graph(Generic[Result]):
    """Calls `run`, whose tensors must all keep their addresses. The next call overwrites the result.

    pool: memory shared by graphs that never run at the same time, from `torch.cuda.graph_pool_handle()`. What other threads
    call meanwhile does not break the capture.
    """

    def __init__(self, run: Callable[[], Result], device: torch.device, pool: Any = None) -> None:
        self._run, self._graph = run, None
        if device.type != "cuda":
            return
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._result = run()

    def __call__(self) -> Result:
        if self._graph is None:
            return self._run()
        self._graph.replay()
        return self._result


class RecentGraphs(Generic[Made]):
    """At most `most` of what was captured, by its sizes; what was not used for longest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: OrderedDict[Hashable, Made] = OrderedDict()

    def __len__(self) -> int:
        return len(self._made)

    def get(self, sizes: Hashable, capture: Callable[[], Made]) -> Made:
        """What was captured for these sizes, or is now."""
        if sizes not in self._made:
            while len(self._made) >= self._most:
                self._made.popitem(last=False)
            self._made[sizes] = capture()
        self._made.move_to_end(sizes)
        return self._made[sizes]


def on_triton(tensor: Tensor) -> bool:
    """True on CUDA, and anywhere while Triton's interpreter is on (TRITON_INTERPRET=1 since before this was imported)."""
    if tensor.is_cuda:
        return True
    import triton  # here, so that models load without it: kernels alone ask

    return bool(triton.knobs.runtime.interpret)


def padded(size: int, least: int = 16) -> int:
    """The next power of two, but at least `least`: Triton's matrix products take no smaller sizes than 16."""
    return max(least, 1 << (size - 1).bit_length())


_ROW_FACTS, _SEQUENCE_FACTS = 4, 9


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows that one sequence feeds to a forward.

    table: its keys and values, with room for the rows. before: tokens before the rows, which see all of them. tokens,
    positions: of the rows. seen: bool [rows, rows] on the CPU: which of the rows each row sees, never a later one; None: all
    up to itself, or simply all with `mutual`. prefix [planes, tokens, head_dim]: keys and values of its first tokens, which it
    shares with other sequences; those in its table follow. None: there are none.
    """

    table: Tensor
    before: int
    tokens: Sequence[int]
    positions: Sequence[int]
    seen: Tensor | None = None
    prefix: Tensor | None = None
    mutual: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def shared(self) -> int:
        """Tokens of the prefix."""
        return 0 if self.prefix is None else self.prefix.shape[1]

    @property
    def slots(self) -> slice:
        """Of the rows in the table."""
        return slice(self.before - self.shared, self.before - self.shared + len(self))


class Ragged:
    """Buffers for up to `sequences` sequences that feed up to `rows` rows together and up to `width` each.

    heads: room for the rows whose logits are asked for. trees: whether there is room for rows that do not see all before them.
    scales_at: of the tables, see `kernels.gpu.tree_attention`.
    All numbers go to the device in one copy, which nothing waits for.
    """

    def __init__(
        self,
        sequences: int,
        rows: int,
        width: int,
        device: torch.device | str,
        heads: int = 0,
        trees: bool = True,
        scales_at: int = 0,
    ) -> None:
        self.rows, self.width, self.heads, self.scales_at = rows, width, heads, scales_at
        self._sizes = _ROW_FACTS * rows, _SEQUENCE_FACTS * sequences, heads
        numbers = sum(self._sizes)
        self._buffer = torch.zeros(8 * numbers + rows * width * trees, dtype=torch.uint8, device=device)
        by_row, by_sequence, self.wanted = torch.split(self._buffer[: 8 * numbers].view(torch.long), list(self._sizes))
        # [rows]: token id; position in the text; index of its sequence, -1 for none; its row in that sequence's table
        self.token, self.position, self.owner, self.slot = by_row.view(_ROW_FACTS, rows)
        # [sequences]: the table's address and capacity; first row and number of rows here; tokens before; 0 for a tree, 1 where
        # rows see those up to themselves, 2 where they see all; of the prefix, the address, what its planes are apart, and how
        # many tokens it has
        facts = by_sequence.view(_SEQUENCE_FACTS, sequences).unbind()
        self.address, self.capacity, self.first, self.count, self.before, self.causal, *prefix = facts
        self.prefix, self.prefix_capacity, self.shared = prefix
        seen = self._buffer[8 * numbers :]
        self.seen = seen.view(rows, width) if trees else seen  # read where `causal` is 0
        self.fill([])

    @classmethod
    def of(cls, parts: Sequence[SequenceRows], wanted: Sequence[int] = (), scales_at: int = 0) -> "Ragged":
        """Buffers of exactly the needed size."""
        counts, trees = [len(part) for part in parts], any(part.seen is not None for part in parts)
        ragged = cls(len(parts), sum(counts), max(counts), parts[0].table.device, len(wanted), trees, scales_at)
        ragged.fill(parts, wanted)
        return ragged

    @property
    def sequences(self) -> int:
        return len(self.count)

    def fill(self, parts: Sequence[SequenceRows], wanted: Sequence[int] = ()) -> None:
        """Describe the next forward. Rows are ordered by sequence; leftover rows belong to none.

        wanted: rows whose logits are asked for; leftover room for them names row 0.
        """
        self.parts = list(parts)  # the references use these
        numbers = sum(self._sizes)
        masked = sum(map(len, parts)) if any(part.seen is not None for part in parts) else 0
        host = np.zeros(8 * numbers + masked * self.width, dtype=np.uint8)
        by_row, by_sequence, heads = np.split(host[: 8 * numbers].view(np.int64), np.cumsum(self._sizes[:2]))
        by_row, by_sequence = by_row.reshape(_ROW_FACTS, -1), by_sequence.reshape(_SEQUENCE_FACTS, -1)
        seen = host[8 * numbers :].reshape(-1, self.width)
        by_row[2], heads[: len(wanted)], first = -1, wanted, 0
        for index, part in enumerate(parts):
            count, table, slots = len(part), part.table, range(part.slots.start, part.slots.stop)
            by_row[:, first : first + count] = part.tokens, part.positions, [index] * count, slots
            facts = table.data_ptr(), table.shape[1], first, count, part.before, 2 if part.mutual else part.seen is None
            by_sequence[:, index] = *facts, *_place(part.prefix), part.shared
            if part.seen is not None:
                seen[first : first + count, :count] = part.seen.numpy()
            first += count
        send_into(self._buffer, host)


def _place(prefix: Tensor | None) -> tuple[int, int]:
    """Address of a prefix, and of how many rows the planes are that it is a view of."""
    return (0, 0) if prefix is None else (prefix.data_ptr(), prefix.stride(0) // prefix.shape[2])
