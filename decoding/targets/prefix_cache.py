"""Caches of keys and values and of hidden states: a text's own, and prefixes that texts share.

A step writes its rows directly after the committed ones. Committing a chain moves nothing, dropping rows costs nothing,
and of a tree path only the accepted rows that lie out of place are moved. Hidden states, a plane per tap, are not copied for a
sequence that continues another: that would take as long as a forward.

`PrefixCache` decides which entries of closed sequences stay; what an entry holds is its target's business. On disk, a file
holds the keys and values of a page of positions. Its name is a digest of the model and of all tokens up to the page's end, so
a page is taken for the same text only. The files that were used last stay. Only this user can read them.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.cache_folder import written_whole
from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import Array, DraftCaches

_SMALLEST = 256  # rows
Rows = TypeVar("Rows", bound=Array)


class TokenTable(Generic[Rows]):
    """A growing table of rows, one per token, in `planes` (layers, or taps). How many are valid is for the owner to know.

    empty: makes an array of a shape, whose numbers may be anything.
    """

    def __init__(self, planes: int, shape: tuple[int, ...], empty: Callable[[tuple[int, ...]], Rows]) -> None:
        self._empty = empty
        self.data = empty((planes, 0, *shape))  # [planes, capacity, *shape]

    def reserve(self, needed: int, keep: int) -> None:
        """Room for `needed` rows; the first `keep` survive. Capacity doubles, so a token is copied once on average."""
        planes, capacity, *shape = self.data.shape
        if needed <= capacity:
            return
        grown = max(_SMALLEST, 1 << (needed - 1).bit_length())
        old, self.data = self.data, self._empty((planes, grown, *shape))
        self.data[:, :keep] = old[:, :keep]

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """Move row `start + rows[i]` to `start + i`; rows ascend. Those that lie in place already are not touched."""
        placed = next((i for i, row in enumerate(rows) if row != i), len(rows))
        if placed == len(rows):
            return
        self.data[:, start + placed : start + len(rows)] = self.data[:, [start + row for row in rows[placed:]]]

    def copy_from(self, prefix: Rows) -> None:
        """Begin with the rows of `prefix` [planes, count, *shape], with room for some more."""
        count = prefix.shape[1]
        self.reserve(count + _SMALLEST, 0)
        self.data[:, :count] = prefix

    def first_rows(self, count: int) -> Self:
        """A table of a copy of the first `count` rows, with room for no more."""
        table = copy(self)
        table.data = self.copied(0, count)
        return table

    def joined(self, prefix: Rows, count: int) -> Rows:
        """A copy of the rows of `prefix` [planes, rows, *shape] and of the first `count` rows after them."""
        planes, rows, *shape = prefix.shape
        copy = self._empty((planes, rows + count, *shape))
        copy[:, :rows], copy[:, rows:] = prefix, self.data[:, :count]
        return copy

    def copied(self, start: int, end: int) -> Rows:
        """A copy of the rows from `start` to `end` [planes, rows, *shape]."""
        planes, _, *shape = self.data.shape
        copy = self._empty((planes, end - start, *shape))
        copy[:] = self.data[:, start:end]
        return copy


class PrefixedTable(Generic[Rows]):
    """Rows that another table has, and a table of its own after them. Committed rows are never written again, so a table that
    continues a sequence may read its first rows where they are.

    prefix [planes, rows, *shape]: a view of those; None: there is none. own: what follows.
    """

    def __init__(self, own: TokenTable[Any], prefix: Rows | None = None) -> None:
        self.own, self.prefix = own, prefix

    @property
    def shared(self) -> int:
        """Rows before its own."""
        return 0 if self.prefix is None else self.prefix.shape[1]

    @property
    def nbytes(self) -> int:
        """Of all rows, shared or not."""
        return int(self.own.data.nbytes) + (0 if self.prefix is None else self.prefix.nbytes)

    def reserve(self, needed: int, keep: int) -> None:
        """Room for `needed` rows in all; the first `keep` survive."""
        self.own.reserve(needed - self.shared, max(keep - self.shared, 0))

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """See `TokenTable.compact`."""
        self.own.compact(start - self.shared, rows)


class StateTable(PrefixedTable[Rows]):
    """first: the row from which on `own` has the rows where there is no prefix; those before it are nobody's."""

    def __init__(self, own: TokenTable[Any], prefix: Rows | None = None, first: int = 0) -> None:
        super().__init__(own, prefix)
        self._first = first

    @property
    def shared(self) -> int:
        return self._first if self.prefix is None else super().shared

    def write(self, plane: int, row: int, states: Array) -> None:
        """Those of one tap [rows, hidden], from a row on that is its own."""
        self.own.data[plane, row - self.shared : row - self.shared + len(states)] = states

    def copied(self, start: int, end: int) -> Any:
        """[rows, planes, hidden] of rows of its own."""
        return self.own.copied(start - self.shared, end - self.shared).swapaxes(0, 1)

    def rows(self, count: int) -> Any:
        """[planes, count, hidden] of the first rows: a view where all lie in one place, else a copy."""
        if self.prefix is not None and count <= self.shared:
            return self.prefix[:, :count]
        if self.prefix is None:
            return self.own.data[:, :count]
        return self.own.joined(self.prefix, count - self.shared)


_EMPTY = Draft()


class KvCache(Protocol):
    """Keys and values of one sequence. How many rows are valid is for the sequence to know."""

    def reserve(self, needed: int, keep: int) -> None:
        """Make room for `needed` rows; the first `keep` survive."""
        ...

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """Move row `start + rows[i]` to `start + i`; rows ascend."""
        ...


Cache = TypeVar("Cache", bound=KvCache)


@dataclass(eq=False)  # no slots: Python 3.12.0 to 3.12.3 leave out `__weakref__` in a generic class that has them
class CachedSequence(Generic[Cache]):
    """One open sequence: its cached tokens and what is remembered of them; then what the last `score` staged."""

    sampler: Sampler
    taps: tuple[int, ...]
    cache: Cache
    states: StateTable[Any]
    tokens: list[int] = field(default_factory=list)
    staged: tuple[list[int], Draft] | None = None
    draft_caches: DraftCaches = field(default_factory=dict)

    @property
    def cached(self) -> int:
        return len(self.tokens)

    @property
    def hidden(self) -> Array | None:
        return self.states.rows(self.cached).swapaxes(0, 1) if self.taps else None


@dataclass(frozen=True, slots=True)
class TappedRows:
    """Where a forward writes a sequence's hidden states at its taps."""

    taps: tuple[int, ...]
    table: StateTable[Any]

    def copied(self, first: int, end: int) -> Array | None:
        """[rows, taps, hidden] of some rows of the sequence; None without taps."""
        states: Array | None = self.table.copied(first, end) if self.taps else None
        return states


@dataclass(frozen=True, slots=True)
class Chunk(Generic[Cache]):
    """Rows of one sequence in one forward: pending tokens, and in the last chunk the draft below the last of them."""

    sequence: CachedSequence[Cache]
    tapped: TappedRows
    before: int  # rows of the sequence that go before
    pending: Sequence[int]
    draft: Draft = _EMPTY
    is_last: bool = False

    def __len__(self) -> int:
        return len(self.pending) + len(self.draft)

    @property
    def tokens(self) -> list[int]:
        return [*self.pending, *self.draft.tokens]

    @property
    def choice_positions(self) -> list[int]:
        """Positions in the text of the tokens that the root and each node predict."""
        root = self.before + len(self.pending)
        return [root, *(root + depth for depth in self.draft.depths)]

    def head_rows(self) -> range:
        """Rows of the chunk whose logits are wanted: the root and the nodes."""
        return range(len(self.pending) - 1 if self.is_last else len(self), len(self))

    def staged_states(self) -> Array | None:
        """[pending + nodes, taps, hidden] of all that the sequence fed, once its last chunk is through."""
        return self.tapped.copied(self.sequence.cached, self.before + len(self))


def in_batches(chunks: Iterable[Chunk[Cache]], most: int) -> Iterator[list[Chunk[Cache]]]:
    """Chunks in order, as many at a time as a forward takes: `most` rows."""
    batch: list[Chunk[Cache]] = []
    for chunk in chunks:
        if batch and sum(map(len, batch)) + len(chunk) > most:
            yield batch
            batch = []
        batch.append(chunk)
    if batch:
        yield batch


Kept = TypeVar("Kept")


class Prefix(Protocol):
    """Anything whose first tokens could be reused: an entry, or a sequence that is still open."""

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def taps(self) -> tuple[int, ...]: ...


P = TypeVar("P", bound=Prefix)


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Generic[Kept]):
    """Tokens whose keys and values, and hidden states at `taps`, are in `kept`, and what heads have computed from those."""

    tokens: tuple[int, ...]
    taps: tuple[int, ...]
    kept: Kept
    kept_bytes: int
    draft_caches: DraftCaches = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return self.kept_bytes + sum(cache.size_bytes for cache in self.draft_caches.values())


class PrefixCache(Generic[Kept]):
    """Entries up to `limit_bytes` in all; the one unused for longest goes first. Limit 0 keeps nothing."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: list[Entry[Kept]] = []  # least recently used first

    @property
    def entries(self) -> Sequence[Entry[Kept]]:
        return self._entries

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self._entries)

    def add(self, entry: Entry[Kept]) -> None:
        """Keep an entry; those that it makes superfluous go, then the least recently used until all fit."""
        if entry.size_bytes > self._limit_bytes:
            return
        self._entries = [old for old in self._entries if not _covers(entry, old.tokens, old.taps)]
        self._entries.append(entry)
        self._fit()

    def _fit(self) -> None:
        while self.size_bytes > self._limit_bytes:
            self._entries.pop(0)

    def covers(self, tokens: Sequence[int], taps: tuple[int, ...], draft_caches: DraftCaches) -> bool:
        """Whether an entry already holds all of `tokens` with `taps`: it counts as used then, and gets the draft caches."""
        covering = [entry for entry in self._entries if _covers(entry, tokens, taps)]
        for entry in covering:
            _add_longer(entry.draft_caches, draft_caches)
            self.used(entry)
        self._fit()
        return bool(covering)

    def used(self, entry: Entry[Kept]) -> bool:
        """Note that `entry` was of use. True if it is here."""
        if entry not in self._entries:
            return False
        self._entries.remove(entry)
        self._entries.append(entry)
        return True


def longest_prefix(candidates: Iterable[P], tokens: Sequence[int], taps: tuple[int, ...]) -> tuple[P, int] | None:
    """The candidate that shares most first tokens with `tokens`, and how many; None where none shares any.

    A candidate that lacks one of `taps` is no candidate. Of equals the last wins.
    """
    wanted, best = tuple(tokens), None
    for candidate in candidates:
        if set(taps) <= set(candidate.taps):
            count = common_length(candidate.tokens, wanted)
            if count and (best is None or count >= best[1]):
                best = candidate, count
    return best


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first tokens are the same: by halving, since slices compare fast."""
    low, high = 0, min(len(a), len(b))
    if tuple(a[:high]) == tuple(b[:high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if tuple(a[low:middle]) == tuple(b[low:middle]):
            low = middle
        else:
            high = middle
    return low


def _add_longer(known: DraftCaches, more: DraftCaches) -> None:
    """Add those that are computed from more tokens than what is known."""
    for head, cache in more.items():
        if head not in known or known[head].count < cache.count:
            known[head] = cache


def _covers(entry: Entry[Kept], tokens: Sequence[int], taps: tuple[int, ...]) -> bool:
    return set(taps) <= set(entry.taps) and common_length(entry.tokens, tokens) == len(tokens)


MOST_BYTES = 256 << 20
WORTH_PAGES = 4  # fewer are sooner computed than kept
_SUFFIX = ".page"

Page = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DiskPrefixCache:
    """Pages below `folder`. model: what changes with any of the model's numbers. positions, shape, dtype: of a page."""

    folder: Path
    model: str
    positions: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    most_bytes: int = MOST_BYTES

    def read(self, tokens: Sequence[int]) -> list[Page]:
        """The first pages of these tokens that are kept, mapped; none after the first one that is missing."""
        found: list[Page] = []
        for file in self._files(tokens):
            page = self._mapped(file)
            if page is None:
                break
            found.append(page)
        return found

    def write(self, tokens: Sequence[int], pages: Sequence[Page]) -> None:
        """Keep the full pages of these tokens if enough of them are new. Where that fails they are computed next time."""
        missing = [(file, page) for file, page in zip(self._files(tokens), pages, strict=False) if not file.exists()]
        if len(missing) >= WORTH_PAGES:
            with suppress(OSError):
                for file, page in missing:
                    written_whole(file, page.tobytes())
                self._prune()

    def _files(self, tokens: Sequence[int]) -> Iterator[Path]:
        digest = hashlib.sha256(f"{self.model} {self.shape}".encode())
        for end in range(self.positions, len(tokens) + 1, self.positions):
            digest.update(np.array(tokens[end - self.positions : end], np.int64).tobytes())
            yield self.folder / f"{digest.hexdigest()[:32]}{_SUFFIX}"

    def _mapped(self, file: Path) -> Page | None:
        try:
            page = np.memmap(file, self.dtype, "c")
            file.touch()  # used last
            return page.reshape(self.shape).view(np.ndarray)
        except (OSError, ValueError):  # not there, or of another size
            return None

    def _prune(self) -> None:
        total = 0
        for file in sorted(self.folder.glob(f"*{_SUFFIX}"), key=lambda each: -each.stat().st_mtime_ns):
            total += file.stat().st_size
            if total > self.most_bytes:
                file.unlink(missing_ok=True)
