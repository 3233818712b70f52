"""Guesses from the target's own logits, in numpy."""

from typing import Any

import numpy as np

from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import PairScores, TokenSet
from decoding.methods.drafting.trees import Level

LIKELY = 256  # tokens per position whose noise is worth computing


class LikelyLevels:
    """The best `count` guesses of each row of logits [rows, vocab], the first of which predicts position `first`.

    tokens: those that the logits belong to, [rows, tokens], if not all. pairs: what is added to the logits by the token before
    each position, where that is known to matter. Noise is computed for a position's most likely tokens only, and
    probabilities are shares among these.
    """

    def __init__(
        self,
        sampler: Sampler,
        logits: Floats,
        first: int,
        count: int,
        pairs: PairScores | None = None,
        tokens: TokenSet | None = None,
    ) -> None:
        self._sampler, self._first, self._count, self._pairs = sampler, first, count, pairs
        places = _best(logits, max(count, LIKELY))
        self._ids = places if tokens is None else tokens.ids[places]
        self._logits = np.take_along_axis(logits, places, -1)
        self._known: dict[tuple[int, int], Level] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def level(self, depth: int, previous: int) -> Level:
        """The guesses for position `first + depth` after the token `previous`. Raises IndexError beyond the last row."""
        key = (depth, previous if self._pairs else 0)
        if key not in self._known:
            ids, logits = self._ids[depth], self._logits[depth]
            if self._pairs:
                logits = logits + self._pairs.scores(previous, ids)
            self._known[key] = self._ranked(ids[None], logits[None], self._first + depth)
        return self._known[key]

    def _ranked(self, ids: Any, logits: Floats, position: int) -> Level:
        scores = log_probabilities(self._sampler.rank(logits, np.array([[position]]), ids))
        best = _best(scores, self._count)[0]
        return Level(ids[0, best].tolist(), scores[0, best].tolist())


def log_probabilities(scores: Floats) -> Floats:
    """Log-softmax over the last dimension. NaN becomes -inf."""
    shifted = scores - scores.max(-1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return np.nan_to_num(found, nan=-np.inf, neginf=-np.inf)


def _best(scores: Floats, count: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.intp]]":
    """Indices [rows, count] of the largest scores of every row, in descending order; fewer where there are fewer."""
    count = min(count, scores.shape[-1])
    most = np.argpartition(scores, -count, -1)[:, -count:]
    order = np.argsort(-np.take_along_axis(scores, most, -1), -1, kind="stable")
    return np.take_along_axis(most, order, -1)
