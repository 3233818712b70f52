"""Guesses from the target's own logits, in numpy."""

import numpy as np

from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.sampling.sampler import Sampler
from decoding.methods.drafting.trees import Level

LIKELY = 256  # tokens per position whose noise is worth computing


def likely_levels(sampler: Sampler, logits: Floats, first: int, count: int) -> list[Level]:
    """The best `count` guesses of each row of logits [rows, vocab], the first of which predicts position `first`.

    Noise is computed for a position's most likely tokens only, and probabilities are shares among these.
    """
    ids = _best(logits, max(count, LIKELY))
    positions = np.arange(first, first + len(logits))[:, None]
    scores = log_probabilities(sampler.rank(np.take_along_axis(logits, ids, -1), positions, ids))
    best = _best(scores, count)
    tokens, found = np.take_along_axis(ids, best, -1), np.take_along_axis(scores, best, -1)
    return [Level(row, values) for row, values in zip(tokens.tolist(), found.tolist(), strict=True)]


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
