"""A small constraint for tests: one of several texts."""

from collections.abc import Sequence

import numpy as np

from decoding.engine.constraint import Mask


class OneOf:
    """The constraint that allows one of several texts, each as tokens, and then a stop token. A state is what was written.

    size: width of the logits. Raises ValueError without a text or a stop token.
    """

    def __init__(self, texts: Sequence[Sequence[int]], stop: frozenset[int], size: int) -> None:
        if not texts or not stop:
            raise ValueError("a choice needs a text to choose and a stop token to end it with")
        self._texts = tuple(map(tuple, texts))
        self._stop, self._size = stop, size

    def start(self) -> tuple[int, ...]:
        return ()

    def allowed(self, state: tuple[int, ...]) -> Mask:
        mask = np.zeros(self._size, dtype=np.bool_)
        mask[sorted(self._next(state))] = True
        return mask

    def admits(self, state: tuple[int, ...], token: int) -> bool:
        return token in self._next(state)

    def step(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        return state if token in self._stop else (*state, token)

    def forced(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """Up to the next choice; the first stop token where nothing else is left."""
        run: list[int] = []
        while len(following := self._next((*state, *run))) == 1:
            run += following
        return (*run, min(self._stop)) if following == self._stop else tuple(run)

    def _next(self, state: tuple[int, ...]) -> frozenset[int]:
        written = len(state)
        going_on = [text for text in self._texts if text[:written] == state]
        more = frozenset(text[written] for text in going_on if len(text) > written)
        return more | self._stop if any(len(text) == written for text in going_on) else more
