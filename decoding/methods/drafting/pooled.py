"""Guesses of several proposers for the same place as one distribution: a product of experts with fitted weights.

What proposers say is neither independent nor of the same scale: a copied token that the head knows nothing of is right in a
quarter of the cases, one of which it is sure nearly always. So each proposer's log-probability has a weight, a copied token has
a bonus, and a constant stands for all tokens that nobody guessed.
"""

from collections.abc import Mapping
from math import exp, log

UNLISTED = 0.002
"""What a proposer says of a token that it did not list."""

HEAD, MASKS = 0.85, 0.88
"""Weights of log-probabilities where one of the two guesses."""

HEAD_BESIDE, MASKS_BESIDE = 0.33, 0.74
"""Where both do."""

COPY, COPY_SLOPE = 1.48, 0.31
"""What a copied token gets: a constant, and a share of the log-odds that it is right."""

OTHER, OTHER_BESIDE_COPY = -3.49, -3.33
"""The score of all tokens that nobody guessed."""


def pooled(copies: Mapping[int, float], head: Mapping[int, float], masks: Mapping[int, float]) -> dict[int, float]:
    """The probability of each guessed token. copies: as from `copied.CopiedGuesses.shares`, if there is nothing else."""
    if not (head or masks):
        return dict(copies)
    weights = ((head, HEAD_BESIDE if masks else HEAD), (masks, MASKS_BESIDE if head else MASKS))
    scores = {
        token: sum(weight * log(max(said.get(token, 0.0), UNLISTED)) for said, weight in weights if said)
        for token in {**copies, **head, **masks}
    }
    for token, chance in copies.items():
        chance = min(max(chance, 0.01), 0.99)
        scores[token] += COPY + COPY_SLOPE * log(chance / (1.0 - chance))
    shares = {token: exp(score) for token, score in scores.items()}
    total = sum(shares.values()) + exp(OTHER_BESIDE_COPY if copies else OTHER)
    return {token: share / total for token, share in shares.items()}
