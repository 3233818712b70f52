"""Fits what answers begin with, on a target's own answers (see `checkpoints.adapters.beginnings`).

What is fitted are logits of a softmax to which the scores of pairs and of followers are added as they are, so the problem is
convex.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from decoding.checkpoints.adapters.beginnings import Beginnings, Floats, Ids
from decoding.checkpoints.adapters.token_pairs import TokenPairs

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
    """[places, tokens] those of each place's tokens; -inf behind them."""
    width = max(len(place.tokens) for place in places)
    tokens, added = np.zeros((len(places), width), np.int64), np.full((len(places), width), -np.inf, np.float32)
    for row, place in enumerate(places):
        tokens[row, : len(place.tokens)], added[row, : len(place.tokens)] = place.tokens, place.added
    rows = logits[[place.kind for place in places], [place.position for place in places]]
    return rows.gather(1, torch.from_numpy(tokens)) + torch.from_numpy(added)
