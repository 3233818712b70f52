"""Where a text stands in its constraint: for the engine, and for drafters that grow their trees among what is allowed."""

from typing import Any

from torch import Tensor

from decoding.engine.constraint import Constraint


class Place:
    """The state, and what is left of the forced tokens that the text is amid.

    A draft that spells out forced tokens must spell them so: the state alone may allow others (`i` for `I`). A place
    remembers what it was asked and the places behind it, for the engine asks again what the drafter has asked.
    """

    __slots__ = ("_after", "_constraint", "_state", "_stop", "_taken", "run")

    def __init__(
        self, constraint: Constraint[Any], stop: frozenset[int], state: Any, run: tuple[int, ...] = ()
    ) -> None:
        """run: forced tokens to come; state: before them, None behind a stop token, where nothing follows."""
        self._constraint, self._stop, self._state, self.run = constraint, stop, state, run
        self._taken: dict[int, bool] = {}
        self._after: dict[int, Place] = {}

    @classmethod
    def beginning(cls, constraint: Constraint[Any], stop: frozenset[int]) -> "Place":
        """Before the first generated token."""
        return cls(constraint, stop, constraint.start())

    def takes(self, token: int) -> bool:
        """Whether the token may follow."""
        if self.run or self._state is None:
            return token in self.run[:1]
        if (found := self._taken.get(token)) is None:
            found = self._taken[token] = self._constraint.admits(self._state, token)
        return found

    def after(self, token: int) -> "Place":
        """Behind a token that it takes. Nothing is forced behind forced tokens but by the model's next choice."""
        if (found := self._after.get(token)) is None:
            found = self._after[token] = self._next(token)
        return found

    def allowed(self) -> Tensor:
        """Boolean mask [vocab] of what may follow where nothing is forced. Shared: not to be written to."""
        return self._constraint.allowed(self._state)

    def _next(self, token: int) -> "Place":
        if token in self._stop:
            return Place(self._constraint, self._stop, None)
        state = self._constraint.step(self._state, token)
        return Place(self._constraint, self._stop, state, self.run[1:] if self.run else self._constraint.forced(state))
