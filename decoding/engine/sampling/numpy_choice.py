"""The sampler's choice on a CPU, in numpy: the same tokens as the plain tensor code, in a fraction of the time.

Only a few tokens of a row can win. The noise is bounded, which rules out those far below the best; a bound from one 24-bit word
each rules out most of the others. Only for the last few is noise computed exactly, as in the reference (`kernels.philox`).
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.philox import GUMBEL_MAX, GUMBEL_MIN, gumbel_of

Words = npt.NDArray[np.uint64]
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL, _MASK, _HALF = (0x9E3779B9, 0xBB67AE85), 0xFFFFFFFF, np.uint64(32)
_LOW = np.uint64(_MASK)
_ROUNDS = 10
_SLACK = 1e-3  # above the fp32 rounding of logit + noise, at most 2^-17 for sums below 128


def argmax_rows(logits: Tensor) -> list[int]:
    """The first of the largest logits of every row [rows, vocab], on any device."""
    if logits.device.type != "cpu":
        return logits.argmax(-1).tolist()
    best: list[int] = np.argmax(_numpy(logits), -1).tolist()
    return best


def keyed_argmax(logits: Tensor, temperature: float, seed: int, position: int) -> int:
    """argmax(logits / temperature + keyed Gumbel noise) of a row [vocab] in CPU memory."""
    scaled = _numpy(logits.float() / temperature)
    tokens = np.flatnonzero(scaled >= scaled.max() - np.float32(GUMBEL_MAX - GUMBEL_MIN))
    near = scaled[tokens]
    words = first_words(seed, position, tokens)
    # -log(-log u) <= -log(1 - u), and 1 - u = (2^25 - 2 w - 1) / 2^25 is exact in fp32 where it is small
    left = np.uint64(2**25 - 1) - 2 * words
    bound = near - np.log(left.astype(np.float32) / np.float32(2**25))
    best = slice(index := int(bound.argmax()), index + 1)
    last = np.flatnonzero(bound >= _exact(near[best], words[best])[0] - _SLACK)
    return int(tokens[last[int(_exact(near[last], words[last]).argmax())]])


def _exact(scaled: npt.NDArray[np.float32], words: Words) -> npt.NDArray[np.float32]:
    return (torch.from_numpy(scaled) + gumbel_of(torch.from_numpy(words.astype(np.int64)))).numpy()


def first_words(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> Words:
    """The top 24 bits of Philox4x32-10's first word for each token: counter (token, position), key seed."""
    zero = np.uint64(0)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    c0, c1, c2, c3 = tokens.astype(np.uint64), np.uint64(position), zero, zero
    for _ in range(_ROUNDS):
        product0: Any = c0 * _MULTIPLIERS[0]
        product1: Any = c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> _HALF) ^ c1 ^ np.uint64(k0), product1 & _LOW
        c2, c3 = (product0 >> _HALF) ^ c3 ^ np.uint64(k1), product0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0 >> np.uint64(8)


def _numpy(logits: Tensor) -> npt.NDArray[np.float32]:
    """The same memory where it is fp32; fp32 holds every bf16 exactly."""
    return logits.detach().float().numpy()
