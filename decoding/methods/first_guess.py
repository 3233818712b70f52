"""The initial guess of the Jacobi family: ids drawn from the prompt, the same for decoding and for training data."""

import random
from collections.abc import Sequence


class PromptDraws:
    """An endless, reproducible draw of token ids from a prompt (the initialisation of CLLM and of lookahead decoding)."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._random = random.Random(len(prompt))

    def take(self, count: int) -> list[int]:
        return self._random.choices(self._prompt, k=max(count, 0))
