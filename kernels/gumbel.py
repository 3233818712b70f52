"""Gumbel noise that is keyed by (seed, position, token), in numpy: the numbers of `kernels.gpu.choice`."""

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
GUMBEL_MIN = -2.8530  # -log(-log(u)) at the smallest uniform, 2^-25: -2.85236
GUMBEL_MAX = 17.3288  # at the largest, 1 - 2^-25: 17.32868
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL, _MASK, _HALF = (0x9E3779B9, 0xBB67AE85), 0xFFFFFFFF, np.uint64(32)
_LOW = np.uint64(_MASK)
_ROUNDS = 10


def gumbel(seed: int, position: int | npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Standard Gumbel noise for each token id, fp32: `kernels.gpu.philox.gumbel` says how it is keyed. Both broadcast."""
    return gumbel_of(first_words(seed, position, tokens))


def gumbel_of(words: Words) -> npt.NDArray[np.float32]:
    """The noise of 24-bit words, which increases with the word; the logarithms are taken in fp64."""
    return (-np.log(-np.log((words.astype(np.float64) + 0.5) / 2**24))).astype(np.float32)


def first_words(seed: int, position: int | npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> Words:
    """The top 24 bits of Philox4x32-10's first word for each token: counter (token, position), key seed."""
    zero = np.uint64(0)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    c0, c1, c2, c3 = tokens.astype(np.uint64), np.asarray(position).astype(np.uint64), zero, zero
    for _ in range(_ROUNDS):
        product0: Any = c0 * _MULTIPLIERS[0]
        product1: Any = c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> _HALF) ^ c1 ^ np.uint64(k0), product1 & _LOW
        c2, c3 = (product0 >> _HALF) ^ c3 ^ np.uint64(k1), product0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    words: Words = c0 >> np.uint64(8)
    return words
