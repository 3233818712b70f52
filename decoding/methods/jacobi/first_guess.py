"""The initial guess of the Jacobi family, the same for decoding and for training data."""

import random
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, Protocol, get_args

import numpy as np

from decoding.engine.method import Context
from decoding.engine.target import TextScores, TokenSet
from decoding.heads.draft_tokens import draft_ids

FirstGuess = Literal["prompt", "mask"]


class Guesses(Protocol):
    def take(self, count: int) -> list[int]:
        """The next `count` ids; none if it is negative."""
        ...

    def answered(self, guesses: Sequence[int]) -> list[int]:
        """The guesses before the first one that would be taken anew wherever it stands."""
        ...


class PromptDraws:
    """An endless, reproducible draw of token ids from a prompt (the initialisation of CLLM and of lookahead decoding)."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._random = random.Random(len(prompt))

    def take(self, count: int) -> list[int]:
        return self._random.choices(self._prompt, k=max(count, 0))

    def answered(self, guesses: Sequence[int]) -> list[int]:
        return list(guesses)


class Masks:
    """Mask tokens. They carry no information, whereas draws from the prompt look like text.

    A model has to be trained on them, as in PARD (arXiv 2504.18583).
    """

    def __init__(self, masks: Sequence[int]) -> None:
        self._masks = masks

    def take(self, count: int) -> list[int]:
        return list(mask_chain(self._masks, count))

    def answered(self, guesses: Sequence[int]) -> list[int]:
        """Where each depth has a mask of its own, masks go by their distance from the last guess before them."""
        if len(self._masks) == 1:
            return list(guesses)
        return list(takewhile(lambda guess: guess not in self._masks, guesses))


def masks_of(prompt: Sequence[int], known: range) -> tuple[int, ...]:
    """Mask tokens by depth: those that the target knows (`Target.mask_tokens`), or else the prompt's last token, which comes
    just before an answer, hardly occurs in one, and is in every vocabulary.
    """
    return tuple(known) or (prompt[-1],)


def mask_chain(masks: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` masks one after another; beyond the last depth its mask is repeated."""
    return tuple(masks[min(depth, len(masks) - 1)] for depth in range(count))


def strided_chain(prompt: Sequence[int], known: range, positions: int, stride: int) -> tuple[int, ...]:
    """The chain of masks that speaks for so many positions, where each speaks for `stride`. known: the target's mask tokens."""
    return mask_chain(masks_of(prompt, known)[::stride], -(-positions // stride))


def guessable(context: Context, prompt: Sequence[int]) -> TokenSet | None:
    """The tokens that masks are asked about: the frequent ones, the prompt's and the recall's; None: all."""
    if context.mask_pairs is None:
        return None
    return TokenSet(np.array(draft_ids(context, context.mask_pairs.ids.tolist(), prompt), np.int64))


def text_scores(context: Context, prompt: Sequence[int], followers: bool) -> TextScores | None:
    """What corrects what masks say, by the tokens before each; None where the target knows nothing of that. followers: whether
    what follows what in the text counts.
    """
    return context.mask_pairs.in_text(prompt if followers else ()) if context.mask_pairs else None


def first_guesses(kind: FirstGuess, prompt: Sequence[int], known: range = range(0)) -> Guesses:
    """known: the target's mask tokens."""
    return Masks(masks_of(prompt, known)) if kind == "mask" else PromptDraws(prompt)


def known(kind: FirstGuess) -> FirstGuess:
    """The kind itself, checked because it may come from a command line. Raises ValueError."""
    if kind not in get_args(FirstGuess):
        raise ValueError(f"first_guess must be one of: {', '.join(get_args(FirstGuess))}; not {kind!r}")
    return kind
