"""A position in a constraint, for the engine and for drafters that build their trees from allowed tokens only."""

from typing import Any

from decoding.engine.constraint import Constraint, Mask


class ConstraintCursor:
    """The constraint's state after some tokens, and the rest of a run of forced tokens that has begun.

    A draft must contain forced tokens exactly as they are: the state alone may admit others (`i` for `I`). A cursor caches
    its answers and the cursors after it, because the engine repeats the drafter's queries.
    """

    __slots__ = ("_admitted", "_after", "_constraint", "_state", "_stop", "run")

    def __init__(
        self, constraint: Constraint[Any], stop: frozenset[int], state: Any, run: tuple[int, ...] = ()
    ) -> None:
        """run: the forced tokens to come. state: the state before them; None after a stop token, where nothing follows."""
        self._constraint, self._stop, self._state, self.run = constraint, stop, state, run
        self._admitted: dict[int, bool] = {}
        self._after: dict[int, ConstraintCursor] = {}

    @classmethod
    def start(cls, constraint: Constraint[Any], stop: frozenset[int]) -> "ConstraintCursor":
        """The cursor before the first generated token."""
        return cls(constraint, stop, constraint.start())

    @property
    def ended(self) -> bool:
        """Whether a stop token came: nothing may follow it."""
        return self._state is None

    def admits(self, token: int) -> bool:
        """Whether the token may follow."""
        if self.run or self._state is None:
            return token in self.run[:1]
        if (found := self._admitted.get(token)) is None:
            found = self._admitted[token] = self._constraint.admits(self._state, token)
        return found

    def after(self, token: int) -> "ConstraintCursor":
        """The cursor after an admitted token. More tokens can be forced only after the model's next free choice."""
        if (found := self._after.get(token)) is None:
            found = self._after[token] = self._next(token)
        return found

    def allowed(self) -> Mask:
        """Boolean mask [vocab] of the tokens that may follow where none is forced. Shared: do not write to it."""
        return self._constraint.allowed(self._state)

    def _next(self, token: int) -> "ConstraintCursor":
        if token in self._stop:
            return ConstraintCursor(self._constraint, self._stop, None)
        state = self._constraint.step(self._state, token)
        run = self.run[1:] if self.run else self._constraint.forced(state)
        return ConstraintCursor(self._constraint, self._stop, state, run)
