"""One open sequence of a cached target, and the chunks in which it is fed to a forward."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from decoding.engine.draft import Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import Array, DraftCaches
from decoding.targets.cache.state_table import StateTable

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
