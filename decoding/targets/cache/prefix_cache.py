"""What closed sequences leave behind for later ones: which prefix is the longest, and which entry goes first.

A policy only: what an entry holds (keys, values, hidden states) is the target's business. One cache belongs to one target.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from decoding.engine.target import DraftCaches

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
