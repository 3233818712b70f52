"""Running estimates of how often guesses of a kind are right."""

from collections.abc import Sequence


class Chances:
    """The share of successes by kind: what was seen, and a prior that counts as much as `weight` observations.

    >>> chances = Chances((0.5, 0.9), weight=2.0)
    >>> chances.saw(0, True)
    >>> round(chances[0], 2), chances[1], chances[7]  # kinds past the last are like the last
    (0.67, 0.9, 0.9)
    """

    def __init__(self, prior: Sequence[float], weight: float = 8.0) -> None:
        self._hits = [share * weight for share in prior]
        self._seen = [weight] * len(prior)

    def __getitem__(self, kind: int) -> float:
        kind = min(kind, len(self._seen) - 1)
        return self._hits[kind] / self._seen[kind]

    def saw(self, kind: int, hit: float) -> None:
        """Count an observation."""
        kind = min(kind, len(self._seen) - 1)
        self._hits[kind] += hit
        self._seen[kind] += 1


class Rate:
    """Tokens committed in the time of a plain step, so far; a prior counts as much as `steps` of it."""

    def __init__(self, prior: float = 2.5, steps: float = 8.0) -> None:
        self._tokens, self._steps = prior * steps, steps

    @property
    def tokens_per_step(self) -> float:
        return self._tokens / self._steps

    def saw(self, tokens: int, steps: float) -> None:
        """Count a round."""
        self._tokens += tokens
        self._steps += steps
