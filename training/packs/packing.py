"""Many pairs in one forward: what they share is fed once, and none sees another's tokens.

A pack is a forest of token trees in depth-first order. A row (one node of a tree) sees its ancestors and itself; its position
is its depth. So a pair has the same logits in a pack as alone. Pairs of a group share their prefix; a later step's prompt that
continues an earlier step's prompt and answer shares those, too.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from training.packs.groups import TokenPair, Tokens

Floats = NDArray[np.float32]
ROOT = -1
# Ids that are sorted by their tokens together: about as many as a pack holds. Neighbours then share slots that are empty or
# equal: one token in ten, on the compact profile's pairs.
IDS_SORTED = 12


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows and their targets. The targets of one pair are contiguous."""

    tokens: Tokens  # [rows]
    parents: Tokens  # [rows] the previous row of the same text, or ROOT
    sources: Tokens  # [targets] the row whose logits predict the target
    targets: Tokens  # [targets] token ids
    weights: Floats  # [targets]
    owners: Tokens  # [targets] index into `pairs`
    pairs: tuple[tuple[str, str], ...]  # (step, id)

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """All arrays on which training depends."""
        return self.tokens, self.parents, self.sources, self.targets, self.weights

    def positions(self) -> Tokens:
        """[rows] depth in the tree, 0 at its root."""
        depths = np.zeros(self.rows, dtype=np.int32)
        for start, stop in self.chains():
            parent = self.parents[start]
            depths[start:stop] = np.arange(stop - start) + (depths[parent] + 1 if parent != ROOT else 0)
        return depths

    def mask(self) -> NDArray[np.bool_]:
        """[rows, rows] which rows each row sees."""
        seen = np.zeros((self.rows, self.rows), dtype=np.bool_)
        for start, stop in self.chains():
            if (parent := self.parents[start]) != ROOT:
                seen[start:stop] = seen[parent]
            seen[start:stop, start:stop] = np.tri(stop - start, dtype=np.bool_)
        return seen

    def ends(self) -> Tokens:
        """[rows] the row after the last one below each row, so that row i sees row j if j <= i < ends[j]."""
        depths, ends = self.positions(), np.full(self.rows, self.rows, dtype=np.int32)
        path = np.zeros(int(depths.max()) + 1, dtype=np.int32)  # the rows of the text that was fed last, by depth
        deep = 0
        for start, stop in self.chains():
            depth = depths[start]
            ends[path[depth:deep]] = start
            deep = depth + stop - start
            path[depth:deep] = np.arange(start, stop)
        return ends

    def chains(self) -> Iterator[tuple[int, int]]:
        """Runs of rows in which each row's parent is the row before it."""
        return pairwise(_edges(self.parents))


def _edges(parents: Tokens) -> list[int]:
    """Where the runs of rows begin in which each row's parent is the row before it, and where the last one ends."""
    breaks = np.flatnonzero(parents != np.arange(len(parents)) - 1)
    return sorted({0, *breaks.tolist(), len(parents)})


def depth_first(parents: Tokens) -> Tokens:
    """[rows] the rows of a forest in depth-first order; of a row's children, the one that was added first comes first.

    >>> depth_first(np.array([-1, 0, 1, 0, 1], np.int32)).tolist()
    [0, 1, 2, 4, 3]
    """
    edges = np.array(_edges(parents))
    starts, stop_of = edges[:-1], dict(pairwise(edges.tolist()))
    by_parent = starts[
        np.lexsort((-starts, parents[starts]))
    ]  # runs; those of the deepest parent and the first child last
    above = parents[by_parent]
    order: list[NDArray[np.int64]] = []
    waiting = by_parent[above == ROOT].tolist()
    while waiting:
        start = waiting.pop()
        stop = stop_of[start]
        order.append(np.arange(start, stop))
        waiting += by_parent[np.searchsorted(above, start) : np.searchsorted(above, stop)].tolist()
    return np.concatenate(order).astype(np.int32)


def digest_of(packs: Iterable[Pack]) -> str:
    """SHA-256 of what packs hold, in order."""
    digest = hashlib.sha256()
    for each in packs:
        for part in each.arrays():
            digest.update(part.tobytes())
    return digest.hexdigest()


class Packable(Protocol):
    """A text to be packed with others: a pair, or anything else with such tokens."""

    @property
    def id(self) -> str: ...

    @property
    def tokens(self) -> Tokens: ...

    @property
    def rows(self) -> int:
        """Rows that it takes by itself."""
        ...


T = TypeVar("T", bound=Packable)
T_in = TypeVar("T_in", bound=Packable, contravariant=True)
P = TypeVar("P", bound=Pack)
P_out = TypeVar("P_out", bound=Pack, covariant=True)


class Builder(Protocol[T_in, P_out]):
    """A pack under construction."""

    @property
    def rows(self) -> int: ...

    def new_rows(self, item: T_in) -> int:
        """Rows that adding it would take."""
        ...

    def add(self, item: T_in) -> None: ...

    def pack(self) -> P_out: ...


def pack(
    groups: Iterable[Sequence[TokenPair]], max_rows: int, seed: int, longest: int | None = None
) -> tuple[list[Pack], int]:
    """Packs of at most `max_rows` rows, and how many pairs were left out because they are longer than that, or than `longest`.

    Groups and, inside each, ids are shuffled by `seed`; pairs with the same id stay together. A group that does not fit
    continues in the next pack, where its prefix is fed again.
    """
    return fill(groups, max_rows, seed, _PairBuilder, longest)


def fill(
    groups: Iterable[Sequence[T]],
    max_rows: int,
    seed: int,
    builder: Callable[[], Builder[T, P]],
    longest: int | None = None,
) -> tuple[list[P], int]:
    """`pack` for any items that a builder takes."""
    chance = np.random.default_rng([seed, 0])
    listed = list(groups)
    packs, current, left_out = list[P](), builder(), 0
    for index in chance.permutation(len(listed)):
        for item in _shuffled(listed[index], chance):
            if item.rows > min(max_rows, longest or max_rows):
                left_out += 1
                continue
            if current.rows + current.new_rows(item) > max_rows:
                packs.append(current.pack())
                current = builder()
            current.add(item)
    if current.rows:
        packs.append(current.pack())
    return packs, left_out


def _shuffled(items: Sequence[T], chance: np.random.Generator) -> list[T]:
    """The items shuffled by id, then sorted by their tokens within every few ids, so that similar items are adjacent."""
    ranks = dict.fromkeys(item.id for item in items)
    order = dict(zip(ranks, chance.permutation(len(ranks)).tolist(), strict=True))
    return sorted(items, key=lambda item: (order[item.id] // IDS_SORTED, item.tokens.tolist()))


@dataclass(frozen=True, slots=True)
class Path:
    """A text in a forest: its tokens, and the row of each."""

    tokens: Tokens
    rows: Tokens


NO_PATH = Path(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))


class Forest:
    """Token trees under construction. It owns the rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._tokens: list[Tokens] = []
        self._parents: list[Tokens] = []

    def grow(self, tokens: Tokens, sibling: Path) -> Path:
        """Add a text; the prefix that it shares with `sibling` is not fed again."""
        shared = common(tokens, sibling.tokens)
        new = np.arange(self.rows, self.rows + len(tokens) - shared, dtype=np.int32)
        path = Path(tokens, np.concatenate([sibling.rows[:shared], new]))
        self._tokens.append(tokens[shared:])
        self._parents.append(np.concatenate([[ROOT], path.rows])[shared : len(tokens)].astype(np.int32))
        self.rows += len(new)
        return path

    def tokens(self) -> Tokens:
        return np.concatenate(self._tokens)

    def parents(self) -> Tokens:
        return np.concatenate(self._parents)


class _PairBuilder:
    """Builds a pack of pairs; each shares rows with the one added before it."""

    def __init__(self) -> None:
        self._forest, self._last = Forest(), NO_PATH
        self._learnt: list[tuple[Tokens, TokenPair]] = []

    @property
    def rows(self) -> int:
        return self._forest.rows

    def new_rows(self, item: TokenPair) -> int:
        return len(item.tokens) - common(item.tokens, self._last.tokens)

    def add(self, item: TokenPair) -> None:
        self._last = self._forest.grow(item.tokens, self._last)
        self._learnt.append((self._last.rows[item.prompt_tokens - 1 :], item))

    def pack(self) -> Pack:
        pairs = [pair for _, pair in self._learnt]
        counts = [len(pair.targets) for pair in pairs]
        return Pack(
            tokens=self._forest.tokens(),
            parents=self._forest.parents(),
            sources=np.concatenate([rows for rows, _ in self._learnt]),
            targets=np.concatenate([pair.targets for pair in pairs]),
            weights=np.repeat(np.array([pair.weight for pair in pairs], dtype=np.float32), counts),
            owners=np.repeat(np.arange(len(pairs), dtype=np.int32), counts),
            pairs=tuple((pair.step, pair.id) for pair in pairs),
        )


def common(a: Tokens, b: Tokens) -> int:
    """Length of the common prefix."""
    count = min(len(a), len(b))
    differs = np.flatnonzero(a[:count] != b[:count])
    return int(differs[0]) if len(differs) else count


def pack_order(packs: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the packs in an epoch (from 0), a function of the arguments only."""
    return np.random.default_rng([seed, 1, epoch]).permutation(packs)
