"""What our own targets share: open sequences, the prefixes that closed ones leave, and what is staged and committed.

A subclass brings a forward and a KV cache, whose beginning sequences share: `fast_target` tables, `int8.cpu_target` pages.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import wraps
from itertools import accumulate, pairwise
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from decoding.checkpoints.mask_adapter import DEFAULT_PRIORS, DraftPriors, MaskAdapter
from decoding.checkpoints.model_config import ModelConfig
from decoding.engine.sampler import Sampler
from decoding.engine.target import Array, ForwardInput, ForwardOutput, PairScores
from decoding.targets.prefix_cache import (
    Cache,
    CachedSequence,
    Chunk,
    Entry,
    PrefixCache,
    StateTable,
    TappedRows,
    TokenTable,
    in_batches,
    longest_prefix,
)

Scored = Callable[[Array | None], ForwardOutput]
"""What a forward says of a sequence, once it gets the hidden states (None where nothing is tapped)."""

FORWARD_ROWS = 512  # more go in several forwards, which bounds their memory
CACHE_BYTES = 1 << 30


class Model(Protocol):
    """What a target needs of its model besides the forward."""

    config: ModelConfig

    @property
    def embedding(self) -> Array:
        """[vocab, hidden]."""
        ...

    @property
    def lm_head(self) -> Array:
        """[vocab, hidden]."""
        ...

    @property
    def mask_adapter(self) -> MaskAdapter | None:
        """What its mask tokens get, if it knows any."""
        ...

    def new_states(self, taps: int) -> TokenTable[Any]:
        """An empty table for the hidden states of one sequence: a plane per tap."""
        ...


Kept = TypeVar("Kept")  # what the prefix cache holds of a KV cache
Given = ParamSpec("Given")
Done = TypeVar("Done")
Itself = TypeVar("Itself", bound="CachedTarget[Any, Any]")


def _computing(
    method: Callable[Concatenate[Itself, Given], Done],
) -> Callable[Concatenate[Itself, Given], Done]:
    """The method, in the target's mode of computing."""

    @wraps(method)
    def inside(self: Itself, /, *args: Given.args, **kwargs: Given.kwargs) -> Done:
        with self.mode():
            return method(self, *args, **kwargs)

    return inside


class CachedTarget(ABC, Generic[Cache, Kept]):
    """A `decoding.engine.target.Target` whose forward is the subclass's.

    cache_bytes: memory for the prefixes of closed sequences; 0 keeps nothing.
    """

    model: Model
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext  # entered for all that computes
    prompt_mask = False

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._prefixes = PrefixCache[tuple[Kept, StateTable[Any]]](cache_bytes)
        self._live: WeakSet[CachedSequence[Cache]] = WeakSet()

    @abstractmethod
    def _new_cache(self, source: Kept | None, count: int) -> Cache:
        """An empty cache, or one that begins with the first `count` rows of `source`."""

    @abstractmethod
    def _view(self, cache: Cache, count: int) -> Kept:
        """The first `count` rows of an open sequence's cache, not copied."""

    @abstractmethod
    def _kept(self, cache: Cache, count: int) -> tuple[Kept, int]:
        """The first `count` rows of a closed sequence's cache, to stay, and their size in bytes."""

    @abstractmethod
    def _run(self, chunks: Sequence[Chunk[Cache]], taps: Sequence[int]) -> tuple[Sequence[Scored], Array | None]:
        """One forward: what it says of each last chunk, and hidden states [taps, rows or more, hidden] (None without taps).

        Keys and values go into the sequences' caches.
        """

    def _released(self, cache: Cache) -> None:
        """A closed sequence's cache is no longer used by it."""

    @property
    def _chunk_rows(self) -> int:
        """Most rows of a chunk."""
        return FORWARD_ROWS

    @property
    def _forward_rows(self) -> int:
        """Most rows of a forward."""
        return FORWARD_ROWS

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def mask_tokens(self) -> range:
        adapter = self.model.mask_adapter
        return range(self.vocab_size, self.vocab_size + (adapter.depths if adapter else 0))

    @property
    def mask_pairs(self) -> PairScores | None:
        adapter = self.model.mask_adapter
        return adapter.pairs if adapter else None

    @property
    def ahead(self) -> int:
        adapter = self.model.mask_adapter
        return adapter.ahead.tokens if adapter and adapter.ahead else 0

    @property
    def draft_priors(self) -> DraftPriors:
        adapter = self.model.mask_adapter
        return adapter.priors if adapter else DEFAULT_PRIORS

    @property
    def max_length(self) -> int:
        config = self.model.config
        return min([config.max_positions, *(window for window in config.sliding_windows if window)])

    @property
    def embedding(self) -> Array:
        return self.model.embedding

    @property
    def lm_head(self) -> Array:
        return self.model.lm_head

    @_computing
    def open(self, prompt: Sequence[int], sampler: Sampler, taps: tuple[int, ...] = ()) -> CachedSequence[Cache]:
        self._check_taps(taps)
        found = self._longest(prompt[:-1], taps)
        if found and isinstance(found[0], Entry):
            self._prefixes.used(found[0])
        return self._new(sampler, taps, *found or ())

    @_computing
    def score(self, work: Sequence[ForwardInput[CachedSequence[Cache]]]) -> list[ForwardOutput]:
        chunks = [chunk for each in work for chunk in self._staged(each)]
        return [scores for batch in in_batches(chunks, self._forward_rows) for scores in self._forward(batch)]

    @_computing
    def commit(self, sequence: CachedSequence[Cache], path: Sequence[int]) -> None:
        if sequence.staged is None:
            raise RuntimeError("commit() without score()")
        pending, draft = sequence.staged
        for rows in (sequence.cache, sequence.states):
            rows.compact(sequence.cached + len(pending), path)
        sequence.tokens += [*pending, *(draft.tokens[node] for node in path)]
        sequence.staged = None

    @_computing
    def fork(self, sequence: CachedSequence[Cache], sampler: Sampler) -> CachedSequence[Cache]:
        if sequence.staged is not None:
            raise RuntimeError("fork() between score() and commit()")
        return self._new(sampler, sequence.taps, sequence, sequence.cached)

    @_computing
    def close(self, sequence: CachedSequence[Cache]) -> None:
        if sequence not in self._live:
            return
        self._live.remove(sequence)
        caches = {head: each.first(sequence.cached) for head, each in sequence.draft_caches.items()}
        if sequence.cached and not self._prefixes.covers(sequence.tokens, sequence.taps, caches):
            kept, size_bytes = self._kept(sequence.cache, sequence.cached)
            states = sequence.states  # nobody writes to it any more
            tokens, size_bytes = tuple(sequence.tokens), size_bytes + states.nbytes
            self._prefixes.add(Entry(tokens, sequence.taps, (kept, states), size_bytes, caches))
        self._released(sequence.cache)

    def _new(
        self,
        sampler: Sampler,
        taps: tuple[int, ...],
        source: CachedSequence[Cache] | Entry[tuple[Kept, StateTable[Any]]] | None = None,
        count: int = 0,
    ) -> CachedSequence[Cache]:
        """A sequence with nothing cached, or with the first `count` tokens of `source`."""
        own = self.model.new_states(len(taps))
        if source is None:
            sequence = CachedSequence(sampler, taps, self._new_cache(None, 0), StateTable(own))
        else:
            kept, known = self._remembered(source, count)
            rows = known.rows(count) if taps else None
            same = rows if source.taps == taps or rows is None else rows[[source.taps.index(tap) for tap in taps]]
            cache = self._new_cache(kept, count)
            states = StateTable(own, same, first=count)
            sequence = CachedSequence(sampler, taps, cache, states, list(source.tokens[:count]))
            sequence.draft_caches |= {head: each.first(count) for head, each in source.draft_caches.items()}
        self._live.add(sequence)
        return sequence

    def _longest(self, tokens: Sequence[int], taps: tuple[int, ...]) -> tuple[Any, int] | None:
        """The entry or open sequence that shares most first tokens with these, and how many."""
        sources: list[Any] = [*self._prefixes.entries, *self._live]
        return longest_prefix(sources, tokens, taps)

    def _remembered(
        self, source: CachedSequence[Cache] | Entry[tuple[Kept, StateTable[Any]]], count: int
    ) -> tuple[Kept, StateTable[Any]]:
        if isinstance(source, Entry):
            return source.kept
        return self._view(source.cache, count), source.states

    def _staged(self, work: ForwardInput[CachedSequence[Cache]]) -> list[Chunk[Cache]]:
        """Make room for what a sequence feeds, and cut it into chunks."""
        sequence, pending, draft, _ = work
        cached, fed, most = sequence.cached, len(pending), self._chunk_rows
        self._check(sequence, cached + fed + max(draft.depths, default=0), fed)
        tapped = self._tapped(work)
        for rows in (sequence.cache, sequence.states):
            rows.reserve(cached + fed + len(draft), cached)
        sequence.staged = list(pending), draft
        *first, last = [Chunk(sequence, tapped, cached + i, pending[i : i + most]) for i in range(0, fed, most)]
        return [*first, replace(last, draft=draft, is_last=True)]

    def _tapped(self, work: ForwardInput[CachedSequence[Cache]]) -> TappedRows:
        """Where states go: after those that the sequence has or, for taps of the work, to a table of this forward's own."""
        taps = work.tapped(work.sequence.taps)
        if not work.taps:
            return TappedRows(taps, work.sequence.states)
        self._check_taps(taps)
        table: StateTable[Any] = StateTable(self.model.new_states(len(taps)), first=work.sequence.cached)
        table.reserve(work.sequence.cached + len(work.pending) + len(work.draft), 0)
        return TappedRows(taps, table)

    def _check_taps(self, taps: tuple[int, ...]) -> None:
        if not all(0 <= tap <= self.model.config.layers for tap in taps):
            raise ValueError(f"taps must lie between 0 and {self.model.config.layers}, not {taps}")

    def _check(self, sequence: CachedSequence[Cache], length: int, pending: int) -> None:
        if sequence not in self._live:
            raise ValueError("the sequence is closed")
        if not pending:
            raise ValueError("nothing is pending: the last committed token is never cached")
        if length > self.max_length:
            raise ValueError(f"{length} tokens, draft included, do not fit: the model takes {self.max_length}")

    def _forward(self, chunks: Sequence[Chunk[Cache]]) -> list[ForwardOutput]:
        """Scores of the sequences whose last chunks these are; hidden states are staged after what is there."""
        taps = sorted({tap for chunk in chunks for tap in chunk.tapped.taps})
        scored, hidden = self._run(chunks, taps)
        if hidden is not None:
            for chunk, ends in zip(chunks, pairwise(accumulate(map(len, chunks), initial=0)), strict=True):
                for plane, tap in enumerate(chunk.tapped.taps):
                    chunk.tapped.table.write(plane, chunk.before, hidden[taps.index(tap), slice(*ends)])
        last = [chunk for chunk in chunks if chunk.is_last]
        return [each(chunk.staged_states()) for chunk, each in zip(last, scored, strict=True)]
