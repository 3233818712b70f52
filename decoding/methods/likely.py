"""Guesses with probabilities, of one proposer or of several for the same place.

Guesses from the target's own logits, in numpy.

Guesses of several proposers for the same place as one distribution: a product of experts with fitted weights.

What proposers say is neither independent nor of the same scale: a copied token that the head knows nothing of is right in a
quarter of the cases, one of which it is sure nearly always. So each proposer's log-probability has a weight, a copied token has
a bonus, and a constant stands for all tokens that nobody guessed.
"""

from collections.abc import Mapping
from math import exp, log

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.draft_priors import DEFAULT_PRIORS, DraftPriors
from decoding.engine.sampler import Floats, Sampler
from decoding.engine.target import TextScores, TokenSet
from decoding.methods.trees import Level, Tail

Ids = npt.NDArray[np.int64]

LIKELY = 256  # tokens per position whose noise is worth computing, and that are ranked of many
_NEVER = float(np.finfo(np.float32).min)
FEW = 1024  # without noise, of so many tokens all are ranked: finding the likely ones takes longer


class LikelyLevels:
    """The best `count` guesses of each row of logits [rows, vocab], the first of which predicts position `first`.

    tokens: those that the logits belong to, [rows, tokens], if not all. pairs: what is added to the logits by the tokens before
    each position, where these are known to matter. Of many tokens, and where noise is computed, a position's most likely ones
    alone are ranked, and probabilities are shares among these.
    """

    def __init__(
        self,
        sampler: Sampler,
        logits: Floats,
        first: int,
        count: int,
        pairs: TextScores | None = None,
        tokens: TokenSet | None = None,
    ) -> None:
        self._sampler, self._first, self._count, self._pairs = sampler, first, count, pairs
        self._tokens = tokens
        self._logits = logits if np.isfinite(logits).all() else np.nan_to_num(logits, nan=_NEVER)
        self._ids: Ids = np.arange(logits.shape[-1]) if tokens is None else tokens.ids
        self._ranks_all = not sampler.temperature and len(self._ids) <= FEW
        self._likely: dict[int, tuple[Ids, Floats]] = {}
        self._known: dict[tuple[int, Tail], Level] = {}

    def __len__(self) -> int:
        return len(self._logits)

    def level(self, depth: int, tail: Tail) -> Level:
        """The guesses for position `first + depth` after two tokens. Raises IndexError beyond the last row."""
        key = (depth, tail if self._pairs else (0, 0))
        if key not in self._known:
            self._known[key] = self._ranked(depth, tail)
        return self._known[key]

    def _ranked(self, depth: int, tail: Tail) -> Level:
        """The best of a row; shares are among those that are worth ranking."""
        if self._pairs and self._pairs.best and self._tokens and self._ranks_all:
            return Level(*self._pairs.best(self._logits, depth, tail, self._tokens, self._count))
        ids, logits = self._likeliest(depth)
        if self._pairs:
            logits = self._pairs.corrected(logits, tail, ids)
        if self._sampler.temperature:
            logits = self._sampler.rank(logits[None], np.array([[self._first + depth]]), ids[None])[0]
        places, scores = ranked(logits, self._count)
        return Level(ids[places].tolist(), scores.tolist())

    def _likeliest(self, depth: int) -> "tuple[Ids, Floats]":
        """The tokens of a row that are worth ranking, ascending, and their logits."""
        row = self._logits[depth]
        if self._ranks_all:
            return self._ids, row
        if depth not in self._likely:
            places = np.arange(len(row))
            if (most := max(self._count, LIKELY)) < len(row):
                places = np.sort(np.argpartition(row, -most)[-most:])
            self._likely[depth] = self._ids[places], row[places]
        return self._likely[depth]


def ranked(logits: Floats, count: int) -> "tuple[Ids, Floats]":
    """Places of the largest of logits [tokens], in descending order, and their log-probabilities; fewer than `count` where
    there are fewer.
    """
    count = min(count, len(logits))
    most = np.argpartition(logits, -count)[-count:]
    best: Ids = most[np.argsort(-logits[most], kind="stable")]
    tops: Floats = logits[best]
    return best, tops - (tops[0] + np.log(np.exp(logits - tops[0]).sum()))


def pooled(
    copies: Mapping[int, float],
    head: Mapping[int, float],
    masks: Mapping[int, float],
    priors: DraftPriors = DEFAULT_PRIORS,
) -> dict[int, float]:
    """The probability of each guessed token. copies: as from `CopiedGuesses.shares`, if there is nothing else."""
    if not (head or masks):
        return dict(copies)
    factor = priors.weight_with_copy if copies else 1.0
    weights = (
        (head, factor * (priors.head_weight_with_masks if masks else priors.head_weight)),
        (masks, factor * (priors.mask_weight_with_head if head else priors.mask_weight)),
    )
    heard = [(said, weight) for said, weight in weights if said]
    scores = {
        token: sum(weight * log(max(said.get(token, 0.0), priors.unlisted)) for said, weight in heard)
        for token in {**copies, **head, **masks}
    }
    for token, chance in copies.items():
        chance = min(max(chance, 0.01), 0.99)
        scores[token] += priors.copy_score + priors.copy_slope * log(chance / (1.0 - chance))
    other = priors.other_score_with_copy if copies else priors.other_score
    other += priors.rest_share * sum(
        weight * log(max(1.0 - sum(said.values()), priors.least_rest)) for said, weight in heard
    )
    shares = {token: exp(score) for token, score in scores.items()}
    total = sum(shares.values()) + exp(other)
    return {token: share / total for token, share in shares.items()}
