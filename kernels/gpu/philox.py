"""Counter-based noise: Philox4x32-10 (Salmon et al., SC 2011) and Gumbel numbers from it."""

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)


_WEYL = (0x9E3779B9, 0xBB67AE85)


_MASK = 0xFFFFFFFF


_ROUNDS = 10


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four random 32-bit words per counter. Counter words and results: int64 tensors of one shape, in [0, 2^32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32 x 32 bit product, by 16-bit halves so that nothing overflows int64."""
    low_part = word * (factor & 0xFFFF)
    high_part = word * (factor >> 16) + (low_part >> 16)
    return high_part >> 16, ((high_part & 0xFFFF) << 16) | (low_part & 0xFFFF)


def gumbel(seed: int, position: int | Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, fp32, for each token id of an int64 tensor. Counter = (token, position), which
    broadcast; key = seed.

    Uniforms are (w + 1/2) / 2^24 for the top 24 bits w of the first word; the logarithms are taken in fp64 and rounded, so
    that platforms agree. Every value is in [GUMBEL_MIN, GUMBEL_MAX] of `kernels.gumbel`.
    """
    zeros = torch.zeros_like(tokens)
    counter = (tokens, zeros + position, zeros, zeros)
    return gumbel_of(philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))[0] >> 8)


def gumbel_of(words: Tensor) -> Tensor:
    """The noise of 24-bit words, an int64 tensor; it increases with the word."""
    uniform = (words.double() + 0.5) / 2**24
    return (-torch.log(-torch.log(uniform))).float()
