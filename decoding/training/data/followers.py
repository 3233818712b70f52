"""What follows what in the prompts of a pack, for the training of a mask adapter (see `checkpoints.adapters.followers`)."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.adapters.followers import Flags, Floats, features
from decoding.training.data.groups import Tokens
from decoding.training.data.packing import ROOT, Pack
from kernels.cpu.job import MOST_FOLLOWERS


@dataclass(frozen=True, slots=True)
class FollowerRows:
    """Of each of a pack's sources, the tokens that follow its row's token in the prompt of its text.

    first [sources + 1]: where a source's entries begin. tokens [entries]; features [entries, 9].
    """

    first: npt.NDArray[np.int64]
    tokens: Tokens
    features: Floats

    def of(self, sources: Tokens) -> tuple[npt.NDArray[np.int64], Tokens, Floats]:
        """The entries of these sources, one source after the other: the place of each among `sources`, tokens, features."""
        counts = self.first[sources + 1] - self.first[sources]
        rows = np.repeat(np.arange(len(sources)), counts)
        starts = np.repeat(self.first[sources] - (np.cumsum(counts) - counts), counts)
        entries = starts + np.arange(len(rows))
        return rows, self.tokens[entries], self.features[entries]


def follower_rows(pack: Pack, frequent: Flags) -> FollowerRows:
    """Of a pack. frequent [vocab]: see `features`."""
    counts, tokens, found = np.zeros(len(pack.sources) + 1, np.int64), [], []
    for first, stop, prompt in sorted(_prompts(pack), key=lambda text: text[0]):
        rows = pack.sources[first:stop]
        before = np.where(pack.parents[rows] == ROOT, -1, pack.tokens[pack.parents[rows]])
        each, follower, values = _entries(prompt, before, pack.tokens[rows], frequent)
        counts[first + 1 : stop + 1] = np.bincount(each, minlength=stop - first)
        tokens.append(follower)
        found.append(values)
    return FollowerRows(counts.cumsum(), np.concatenate(tokens), np.concatenate(found))


def _prompts(pack: Pack) -> Iterator[tuple[int, int, Tokens]]:
    """Of each text: its first source, the one behind its last, and the tokens of its prompt."""
    ends = [*np.flatnonzero(np.diff(pack.owners)) + 1, len(pack.owners)]
    texts: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by the last row of their prompts
    for first, stop in pairwise((0, *ends)):
        texts[int(pack.sources[first])].append((int(first), int(stop)))
    last_rows, depths = np.array(sorted(texts)), pack.positions()
    path = np.zeros(int(depths.max()) + 1, np.int32)  # the rows of the text that was fed last, by depth
    for start, stop in pack.chains():
        path[depths[start] : depths[start] + stop - start] = np.arange(start, stop)
        for row in last_rows[np.searchsorted(last_rows, start) : np.searchsorted(last_rows, stop)].tolist():
            for first, behind in texts[row]:
                yield first, behind, pack.tokens[path[: depths[row] + 1]]


def _entries(
    prompt: Tokens, before: Tokens, last: Tokens, frequent: Flags
) -> tuple[npt.NDArray[np.int64], Tokens, Floats]:
    """Which of the tokens `last` [tokens] has an entry, the follower, and its features. before: the tokens before `last`."""
    row, place = np.nonzero(last[:, None] == prompt[None, :-1])
    narrow = (place > 0) & (prompt[np.maximum(place - 1, 0)] == before[row])
    keys, which, counts = np.unique(row * len(frequent) + prompt[place + 1], return_inverse=True, return_counts=True)
    rows, followers = np.divmod(keys, len(frequent))
    kept = np.bincount(rows, minlength=len(last))[rows] <= MOST_FOLLOWERS
    narrows = np.bincount(which, narrow, len(keys))
    all_narrow = np.bincount(row, narrow, len(last))[rows]
    share = counts / np.bincount(row, minlength=len(last))[rows]
    values = features(
        frequent[last[rows]],
        share.astype(np.float32),
        (narrows / np.maximum(all_narrow, 1)).astype(np.float32),
        all_narrow > 0,
        frequent[followers],
    )
    return rows[kept], followers[kept].astype(np.int32), values[kept]
