"""Many pairs in one forward: what they share is fed once, and none sees what is not its own.

A pack is a forest of token trees, depth first. A row (a token in its place) sees its ancestors and itself; its position is
its depth. So the packed logits of a pair are those of the pair alone. Pairs of a group share their prefix; a later step's
prompt that goes on from an earlier step's prompt and answer shares those, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from decoding.training.data import TokenPair, Tokens

Floats = NDArray[np.float32]
ROOT = -1
# Ids that are put in the order of their tokens together: about as many as a pack holds. Slots that are empty or alike are
# then shared by neighbours: one token in ten, on the compact profile's pairs.
IDS_SORTED = 12


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows and what is to be learnt from them. The targets of one pair are contiguous."""

    tokens: Tokens  # [rows]
    parents: Tokens  # [rows] the row before in the same text, or ROOT
    sources: Tokens  # [targets] the row whose logits predict the target
    targets: Tokens  # [targets] token ids
    weights: Floats  # [targets]
    owners: Tokens  # [targets] index into `pairs`
    pairs: tuple[tuple[str, str], ...]  # (step, id)

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def positions(self) -> Tokens:
        """[rows] depth in the tree, 0 at its root."""
        depths = np.zeros(self.rows, dtype=np.int32)
        for start, stop in self._chains():
            parent = self.parents[start]
            depths[start:stop] = np.arange(stop - start) + (depths[parent] + 1 if parent != ROOT else 0)
        return depths

    def mask(self) -> NDArray[np.bool_]:
        """[rows, rows] which rows each row sees."""
        seen = np.zeros((self.rows, self.rows), dtype=np.bool_)
        for start, stop in self._chains():
            if (parent := self.parents[start]) != ROOT:
                seen[start:stop] = seen[parent]
            seen[start:stop, start:stop] = np.tri(stop - start, dtype=np.bool_)
        return seen

    def _chains(self) -> Iterator[tuple[int, int]]:
        """Runs of rows each of which follows the one before."""
        breaks = np.flatnonzero(self.parents != np.arange(self.rows) - 1)
        starts = sorted({0, *breaks.tolist(), self.rows})
        return pairwise(starts)


def pack(groups: Iterable[Sequence[TokenPair]], max_rows: int, seed: int) -> tuple[list[Pack], int]:
    """Packs of at most `max_rows` rows, and how many pairs are too long for one and were left out.

    Groups and, inside each, ids are shuffled by `seed`; pairs with the same id stay side by side. A group that does not fit
    goes on in the next pack, where its prefix is fed again.
    """
    chance = np.random.default_rng([seed, 0])
    listed = list(groups)
    packs, current, left_out = [], _Builder(), 0
    for index in chance.permutation(len(listed)):
        for pair in _shuffled(listed[index], chance):
            if len(pair.tokens) > max_rows:
                left_out += 1
                continue
            if current.rows + current.new_rows(pair) > max_rows:
                packs.append(current.pack())
                current = _Builder()
            current.add(pair)
    if current.rows:
        packs.append(current.pack())
    return packs, left_out


def _shuffled(pairs: Sequence[TokenPair], chance: np.random.Generator) -> list[TokenPair]:
    """By id at random, a few ids at a time; those by their tokens, so that what they share is side by side."""
    ranks = dict.fromkeys(pair.id for pair in pairs)
    order = dict(zip(ranks, chance.permutation(len(ranks)).tolist(), strict=True))
    return sorted(pairs, key=lambda pair: (order[pair.id] // IDS_SORTED, pair.tokens.tolist()))


class _Builder:
    """A pack under construction; `_path` is the row of each token of the pair added last."""

    def __init__(self) -> None:
        self.rows = 0
        self._tokens: list[Tokens] = []
        self._parents: list[Tokens] = []
        self._learnt: list[tuple[Tokens, TokenPair]] = []
        self._last, self._path = _NOTHING, _NOTHING

    def new_rows(self, pair: TokenPair) -> int:
        return len(pair.tokens) - _common(pair.tokens, self._last)

    def add(self, pair: TokenPair) -> None:
        shared = _common(pair.tokens, self._last)
        new = np.arange(self.rows, self.rows + len(pair.tokens) - shared, dtype=np.int32)
        self._path = np.concatenate([self._path[:shared], new])
        self._last = pair.tokens
        self._tokens.append(pair.tokens[shared:])
        self._parents.append(np.concatenate([[ROOT], self._path])[shared : len(self._path)].astype(np.int32))
        self._learnt.append((self._path[pair.prompt_tokens - 1 :], pair))
        self.rows += len(new)

    def pack(self) -> Pack:
        pairs = [pair for _, pair in self._learnt]
        counts = [len(pair.targets) for pair in pairs]
        return Pack(
            tokens=np.concatenate(self._tokens),
            parents=np.concatenate(self._parents),
            sources=np.concatenate([rows for rows, _ in self._learnt]),
            targets=np.concatenate([pair.targets for pair in pairs]),
            weights=np.repeat(np.array([pair.weight for pair in pairs], dtype=np.float32), counts),
            owners=np.repeat(np.arange(len(pairs), dtype=np.int32), counts),
            pairs=tuple((pair.step, pair.id) for pair in pairs),
        )


_NOTHING: Tokens = np.zeros(0, dtype=np.int32)


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the common beginning."""
    count = min(len(a), len(b))
    differs = np.flatnonzero(a[:count] != b[:count])
    return int(differs[0]) if len(differs) else count


def pack_order(packs: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the packs in an epoch (from 0), a function of its arguments alone."""
    return np.random.default_rng([seed, 1, epoch]).permutation(packs)
