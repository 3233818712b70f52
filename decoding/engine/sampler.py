"""Chooses one token from the target's logits, as a pure function of (logits, seed, position).

Gumbel noise is keyed by (seed, position, token), never drawn from a running generator (drafter-invariant sampling, arXiv
2408.07978): in fp32 the text depends on target, temperature and seed only, whatever method drafts.

This is the choice in numpy: the same tokens as with noise for the whole vocabulary, in a fraction of the time. The noise is
bounded, which rules out tokens far below the best; a bound from one 24-bit word each rules out most of the others. Only for the
last few is noise computed exactly, as in the reference (`kernels.gpu.choice`).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernels.gumbel import GUMBEL_MAX, GUMBEL_MIN, first_words, gumbel, gumbel_of

Floats = npt.NDArray[np.float32]
_SLACK = 1e-3  # above the fp32 rounding of logit + noise, at most 2^-17 for sums below 128


def keyed_argmax(logits: Floats, temperature: float, seed: int, position: int) -> int:
    """argmax(logits / temperature + keyed Gumbel noise) of a row [vocab]."""
    scaled = logits / np.float32(temperature)
    tokens = np.flatnonzero(scaled >= scaled.max() - np.float32(GUMBEL_MAX - GUMBEL_MIN))
    near = scaled[tokens]
    words = first_words(seed, position, tokens)
    # -log(-log u) <= -log(1 - u), and 1 - u = (2^25 - 2 w - 1) / 2^25 is exact in fp32 where it is small
    left = np.uint64(2**25 - 1) - 2 * words
    bound = near - np.log(left.astype(np.float32) / np.float32(2**25))
    best = slice(index := int(bound.argmax()), index + 1)
    last = np.flatnonzero(bound >= (near[best] + gumbel_of(words[best]))[0] - _SLACK)
    return int(tokens[last[int((near[last] + gumbel_of(words[last])).argmax())]])


@dataclass(frozen=True, slots=True)
class Shaping:
    """What changes a row of logits before a token is chosen from it, in this order; each is a function of the row and the text.

    repetition: divides the logits, or where negative multiplies them, of tokens that the prompt or the text has (arXiv
    1909.05858). presence, frequency: are taken from those of tokens that the text has, once and per occurrence. Then,
    at temperatures above 0, alone are kept: the `top_k` likeliest (0: all); of these the likeliest that together have `top_p`
    of their probability (arXiv 1904.09751); those at least `min_p` as likely as the likeliest (arXiv 2407.01082).
    Raises ValueError.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def __post_init__(self) -> None:
        if self.top_k < 0 or not 0.0 < self.top_p <= 1.0 or not 0.0 <= self.min_p <= 1.0 or not self.repetition > 0.0:
            raise ValueError(
                "top_k must be 0 or more, top_p above 0 and at most 1, min_p from 0 to 1, and the repetition penalty above 0"
            )

    def shaped(self, logits: Floats, temperature: float, prompt: Sequence[int], text: Sequence[int]) -> Floats:
        """Logits [vocab] as they are to be sampled from, after a prompt and a text; -inf for what is not kept."""
        row = self._penalised(logits, prompt, text)
        truncates = self.top_k or self.top_p < 1.0 or self.min_p
        return self._truncated(row, temperature) if truncates and temperature else row

    def _penalised(self, logits: Floats, prompt: Sequence[int], text: Sequence[int]) -> Floats:
        row = logits.copy()
        if self.repetition != 1.0:
            seen = np.unique(np.array([*prompt, *text], np.int64))
            factor = np.float32(self.repetition)
            row[seen] = np.where(row[seen] > 0, row[seen] / factor, row[seen] * factor)
        if text and (self.presence or self.frequency):
            said, counts = np.unique(np.array(text, np.int64), return_counts=True)
            row[said] -= np.float32(self.presence) + np.float32(self.frequency) * counts.astype(np.float32)
        return row

    def _truncated(self, logits: Floats, temperature: float) -> Floats:
        scaled = logits.astype(np.float64) / temperature
        kept = np.argsort(-scaled, kind="stable")[: self.top_k or None]  # of equals the first
        shares = np.exp(scaled[kept] - scaled[kept[0]])
        shares /= shares.sum()
        is_kept = (np.cumsum(shares) - shares < self.top_p) & (shares >= self.min_p * shares[0])
        row = np.full_like(logits, -np.inf)
        row[kept[is_kept]] = logits[kept[is_kept]]
        return row


@dataclass(frozen=True, slots=True)
class Sampler:
    """Temperature 0 takes the argmax (the first of equals); any other takes argmax(logits / T + keyed Gumbel noise).

    Of two equals the first is taken; at T > 0, the same position always gets the same token:

    >>> logits = np.array([0, 2, 1, 2], np.float32)
    >>> Sampler().pick(logits, position=5)
    1
    >>> warm = Sampler(temperature=1.0, seed=3)
    >>> [warm.pick(logits, position) for position in range(8)]
    [2, 2, 3, 1, 1, 1, 3, 3]
    >>> warm.pick(logits, 4) == warm.pick(logits, 4)  # no generator advances between two calls
    True
    """

    temperature: float = 0.0
    seed: int = 0
    shaping: Shaping | None = None  # where there is any, the engine shapes each row before it picks from it

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}")

    def pick(self, logits: Floats, position: int) -> int:
        """The token for `position` (index into prompt + text) from logits [vocab]."""
        if self.temperature == 0.0:
            return int(logits.argmax())
        return keyed_argmax(logits, self.temperature, self.seed, position)

    def pick_after(self, logits: Floats, position: int, prompt: Sequence[int], text: Sequence[int]) -> int:
        """`pick` from logits that are shaped first, after a prompt and a text."""
        if self.shaping is not None:
            logits = self.shaping.shaped(logits, self.temperature, prompt, text)
        return self.pick(logits, position)

    def rank(
        self, log_probs: Floats, position: int | npt.NDArray[np.int64], tokens: npt.NDArray[np.int64] | None = None
    ) -> Floats:
        """Scores by which a drafter should rank its guesses for `position`; they include the target's own noise.

        log_probs [..., vocab], or of the ids `tokens` [...] alone; an array [..., 1] ranks for several positions at once.
        """
        if self.temperature == 0.0:
            return log_probs
        ids = np.arange(log_probs.shape[-1]) if tokens is None else tokens
        return log_probs / np.float32(self.temperature) + gumbel(self.seed, position, ids)

    def derive(self, *labels: str | int) -> "Sampler":
        """The same temperature under another seed, fixed by the labels (request, step, vote, ...).

        >>> first, second = Sampler(1.0, seed=3).derive("vote", 1), Sampler(1.0, seed=3).derive("vote", 2)
        >>> first == Sampler(1.0, seed=3).derive("vote", 1), first.seed == second.seed
        (True, False)
        """
        text = repr((self.seed, *labels)).encode()
        return replace(self, seed=int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"))
