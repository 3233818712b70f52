"""The sampler's choice in numpy: the same tokens as with noise for the whole vocabulary, in a fraction of the time.

Only a few tokens of a row can win. The noise is bounded, which rules out those far below the best; a bound from one 24-bit word
each rules out most of the others. Only for the last few is noise computed exactly, as in the reference (`kernels.philox`).
"""

import numpy as np
import numpy.typing as npt

from kernels.gumbel import GUMBEL_MAX, GUMBEL_MIN, first_words, gumbel_of

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
