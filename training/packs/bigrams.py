"""Statistics of token sequences in training data.

Fits what answers begin with, on a target's own answers (see `decoding.checkpoints.bigrams.Beginnings`).

What is fitted are logits of a softmax to which the scores of pairs and of followers are added as they are, so the problem is
convex.

What follows what in the prompts of a pack, for the training of a mask adapter (see `decoding.checkpoints.bigrams`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from decoding.checkpoints.bigrams import Beginnings, Flags, Floats, Ids, TokenPairs, features
from kernels.cpu.job import MOST_FOLLOWERS
from training.packs.groups import Tokens
from training.packs.packing import ROOT, Pack

Text = tuple[Sequence[int], Sequence[int]]
"""A prompt and the answer to it."""

POSITIONS = 12
LEAST = 32
"""By default, the answers to prompts with the same end below which nothing is said about them."""

_EPOCHS, _BATCH, _RATE, _DECAY = 10, 64, 0.05, 1e-4


@dataclass(frozen=True, slots=True)
class _Place:
    """A position of an answer. tokens [tokens]: what it may be, as places among the frequent ones; added [tokens]: the scores
    by the tokens before it; right: which of them it is, or None.
    """

    kind: int
    position: int
    tokens: Ids
    added: Floats
    right: int | None


def fitted(pairs: TokenPairs, texts: Sequence[Text], seed: int = 0, least: int = LEAST) -> Beginnings:
    """What the answers of `texts` begin with. Raises ValueError where no end of a prompt has `least` answers."""
    counts = Counter(_end(prompt) for prompt, _ in texts)
    ends = [end for end, count in counts.most_common() if count >= least]
    if not ends:
        raise ValueError(f"no {least} answers are to prompts that end alike")
    places = [place for place in _places(pairs, ends, texts) if place.right is not None]
    logits = torch.zeros(len(ends), POSITIONS, len(pairs.ids) + 1, requires_grad=True)
    optimizer, chance = torch.optim.Adam([logits], lr=_RATE), np.random.default_rng(seed)
    for _ in range(_EPOCHS):
        for batch in np.array_split(chance.permutation(len(places)), -(-len(places) // _BATCH)):
            chosen = [places[index] for index in batch.tolist()]
            rights = torch.tensor([place.right for place in chosen])
            loss = cross_entropy(_scores(logits, chosen), rights) + _DECAY * logits.square().sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return Beginnings(np.array(ends, np.int64), logits.detach().numpy())


def foreseen(pairs: TokenPairs, texts: Sequence[Text]) -> list[float]:
    """[positions] the share of answers whose token there is the likeliest one, given those before it."""
    known = pairs.beginnings
    assert known is not None
    places = list(_places(pairs, list(map(tuple, known.ends.tolist())), texts))
    right, all_ = np.zeros(known.logits.shape[1]), np.zeros(known.logits.shape[1])
    for start in range(0, len(places), _BATCH):
        chosen = places[start : start + _BATCH]
        said = _scores(torch.from_numpy(known.logits), chosen).argmax(1).tolist()
        for place, best in zip(chosen, said, strict=True):
            all_[place.position] += 1
            right[place.position] += best == place.right
    shares: list[float] = (right / np.maximum(all_, 1)).tolist()
    return shares


def _end(prompt: Sequence[int]) -> tuple[int, int]:
    return prompt[-2], prompt[-1]


def _places(pairs: TokenPairs, ends: Sequence[tuple[int, ...]], texts: Sequence[Text]) -> Iterator[_Place]:
    """The first positions of the answers to prompts with these ends, without the stop token."""
    kinds = {end: kind for kind, end in enumerate(ends)}
    for prompt, answer in texts:
        if (kind := kinds.get(_end(prompt))) is None:
            continue
        ids = np.union1d(pairs.ids, np.array(prompt, np.int64))
        tokens, none, scores = pairs.places(ids), np.zeros(len(ids), np.float32), pairs.in_text(prompt)
        text = list(prompt)
        for position, token in enumerate(answer[: min(POSITIONS, len(answer) - 1)]):
            at = int(np.searchsorted(ids, token))
            right = at if at < len(ids) and ids[at] == token else None
            yield _Place(kind, position, tokens, scores.corrected(none, _end(text), ids), right)
            text.append(token)
            scores.grow(text)


def _scores(logits: Tensor, places: Sequence[_Place]) -> Tensor:
    """[places, tokens] those of each place's tokens; -inf after them."""
    width = max(len(place.tokens) for place in places)
    tokens, added = np.zeros((len(places), width), np.int64), np.full((len(places), width), -np.inf, np.float32)
    for row, place in enumerate(places):
        tokens[row, : len(place.tokens)], added[row, : len(place.tokens)] = place.tokens, place.added
    rows = logits[[place.kind for place in places], [place.position for place in places]]
    return rows.gather(1, torch.from_numpy(tokens)) + torch.from_numpy(added)


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
    """Of each text: its first source, the one after its last, and the tokens of its prompt."""
    ends = [*np.flatnonzero(np.diff(pack.owners)) + 1, len(pack.owners)]
    texts: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by the last row of their prompts
    for first, stop in pairwise((0, *ends)):
        texts[int(pack.sources[first])].append((int(first), int(stop)))
    last_rows, depths = np.array(sorted(texts)), pack.positions()
    path = np.zeros(int(depths.max()) + 1, np.int32)  # the rows of the text that was fed last, by depth
    for start, stop in pack.chains():
        path[depths[start] : depths[start] + stop - start] = np.arange(start, stop)
        for row in last_rows[np.searchsorted(last_rows, start) : np.searchsorted(last_rows, stop)].tolist():
            for first, stop_source in texts[row]:
                yield first, stop_source, pack.tokens[path[: depths[row] + 1]]


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
