"""The tokens that a head may draft for one prompt: the frequent ones and those of the prompt, not all that the target has.

The LM head is the largest matrix of a small target. The 500 most frequent tokens of the training answers and the prompt's own
cover nearly all that is written (FR-Spec, arXiv 2502.14856, keeps 32,768 of 128,256; here they follow the prompt as well).
A token outside them costs acceptance, never correctness.
"""

from collections.abc import Iterable
from functools import lru_cache

from decoding.engine.method import Context


def draft_ids(context: Context, frequent: Iterable[int], prompt: Iterable[int]) -> list[int]:
    """Ascending: the frequent tokens, the prompt's and the recall's; the whole vocabulary if `frequent` is empty."""
    always = set(frequent)
    if not always:
        return list(range(len(context.lm_head)))
    return sorted(always.union(prompt, *map(_distinct, context.recall.sequences)))


@lru_cache(maxsize=256)
def _distinct(sequence: tuple[int, ...]) -> frozenset[int]:
    """What many texts recall, such as the skeletons of all plans, is gone through once."""
    return frozenset(sequence)
