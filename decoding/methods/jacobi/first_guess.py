"""The initial guess of the Jacobi family, the same for decoding and for training data."""

import random
from collections.abc import Sequence
from typing import Literal, Protocol, get_args

FirstGuess = Literal["prompt", "mask"]


class Guesses(Protocol):
    def take(self, count: int) -> list[int]:
        """The next `count` ids; none if it is negative."""
        ...


class PromptDraws:
    """An endless, reproducible draw of token ids from a prompt (the initialisation of CLLM and of lookahead decoding)."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._random = random.Random(len(prompt))

    def take(self, count: int) -> list[int]:
        return self._random.choices(self._prompt, k=max(count, 0))


class Masks:
    """A mask token, repeated. It carries no information, whereas draws from the prompt look like text.

    A model has to be trained on it, as in PARD (arXiv 2504.18583).
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._mask = mask_token(prompt)

    def take(self, count: int) -> list[int]:
        return [self._mask] * count


def mask_token(prompt: Sequence[int]) -> int:
    """The prompt's last token: it comes just before an answer, hardly occurs in one, and is in every vocabulary."""
    return prompt[-1]


def first_guesses(kind: FirstGuess, prompt: Sequence[int]) -> Guesses:
    return Masks(prompt) if kind == "mask" else PromptDraws(prompt)


def known(kind: FirstGuess) -> FirstGuess:
    """The kind itself, checked because it may come from a command line. Raises ValueError."""
    if kind not in get_args(FirstGuess):
        raise ValueError(f"first_guess must be one of: {', '.join(get_args(FirstGuess))}; not {kind!r}")
    return kind
