"""Guesses of several proposers for the same place as one distribution: a product of experts with fitted weights.

What proposers say is neither independent nor of the same scale: a copied token that the head knows nothing of is right in a
quarter of the cases, one of which it is sure nearly always. So each proposer's log-probability has a weight, a copied token has
a bonus, and a constant stands for all tokens that nobody guessed.
"""

from collections.abc import Mapping
from math import exp, log

UNLISTED = 0.002
"""What a proposer says of a token that it did not list."""

UNSAID = 1e-5
"""The least that a proposer leaves for all tokens that it did not list."""

HEAD, MASKS = 0.8, 0.88
"""Weights of log-probabilities where one of the two guesses."""

HEAD_BESIDE, MASKS_BESIDE = 0.26, 0.65
"""Where both do."""

BESIDE_COPY = 0.63
"""What these weights are multiplied by where something is copied."""

COPY, COPY_SLOPE = 1.34, 0.3
"""What a copied token gets: a constant, and a share of the log-odds that it is right."""

OTHER, OTHER_BESIDE_COPY = -2.0, -1.83
"""The score of all tokens that nobody guessed, before what proposers leave for them is counted."""

REST = 0.59
"""The share of its weight with which the probability that a proposer leaves for them counts: little, where it is sure."""


def pooled(copies: Mapping[int, float], head: Mapping[int, float], masks: Mapping[int, float]) -> dict[int, float]:
    """The probability of each guessed token. copies: as from `copied.CopiedGuesses.shares`, if there is nothing else."""
    if not (head or masks):
        return dict(copies)
    factor = BESIDE_COPY if copies else 1.0
    weights = (
        (head, factor * (HEAD_BESIDE if masks else HEAD)),
        (masks, factor * (MASKS_BESIDE if head else MASKS)),
    )
    heard = [(said, weight) for said, weight in weights if said]
    scores = {
        token: sum(weight * log(max(said.get(token, 0.0), UNLISTED)) for said, weight in heard)
        for token in {**copies, **head, **masks}
    }
    for token, chance in copies.items():
        chance = min(max(chance, 0.01), 0.99)
        scores[token] += COPY + COPY_SLOPE * log(chance / (1.0 - chance))
    other = OTHER_BESIDE_COPY if copies else OTHER
    other += REST * sum(weight * log(max(1.0 - sum(said.values()), UNSAID)) for said, weight in heard)
    shares = {token: exp(score) for token, score in scores.items()}
    total = sum(shares.values()) + exp(other)
    return {token: share / total for token, share in shares.items()}
