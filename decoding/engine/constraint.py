"""What a grammar must offer to steer decoding, and a position in it, for the engine and for drafters that build their trees
from allowed tokens only. States are immutable, so a draft's branches may share them.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

State = TypeVar("State", bound=Hashable)


@runtime_checkable
class Constraint(Protocol[State]):
    """An automaton over tokens.

    The target's raw keyed choice is kept if it is allowed; only otherwise is the full row of logits masked. A constrained
    text is therefore the same under every method, and equal to constrained plain decoding.
    """

    def start(self) -> State:
        """The state before the first generated token."""
        ...

    def allowed(self, state: State) -> Mask:
        """Boolean mask [vocab] of the tokens that may follow, stop tokens included. Never all false."""
        ...

    def admits(self, state: State, token: int) -> bool:
        """`allowed(state)[token]`. Called for every drafted and every chosen token, so it should cost less than a mask."""
        ...

    def step(self, state: State, token: int) -> State:
        """The state after an allowed token."""
        ...

    def forced(self, state: State) -> tuple[int, ...]:
        """Tokens that must follow `state`, in order; they are committed without a forward. Empty where there is a choice."""
        ...


class ConstraintError(RuntimeError):
    """A constraint reached a state in which nothing is allowed: a fault of the constraint."""


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


class Begun:
    """A constraint under which a text begins with given tokens, which `inner` must allow in this order. A state is how many of
    them are written, and the inner state.
    """

    def __init__(self, tokens: Sequence[int], inner: Constraint[Any]) -> None:
        self._tokens, self._inner = tuple(tokens), inner
        self.key: Hashable = (self._tokens, getattr(inner, "key", inner))

    def start(self) -> tuple[int, Any]:
        return 0, self._inner.start()

    def allowed(self, state: tuple[int, Any]) -> Mask:
        mask, begun = self._inner.allowed(state[1]), self._left(state)
        if not begun:
            return mask
        only = np.zeros_like(mask)
        only[begun[0]] = True
        return only

    def admits(self, state: tuple[int, Any], token: int) -> bool:
        begun = self._left(state)
        return token == begun[0] if begun else self._inner.admits(state[1], token)

    def step(self, state: tuple[int, Any], token: int) -> tuple[int, Any]:
        return state[0] + 1, self._inner.step(state[1], token)

    def forced(self, state: tuple[int, Any]) -> tuple[int, ...]:
        return self._left(state) or self._inner.forced(state[1])

    def _left(self, state: tuple[int, Any]) -> tuple[int, ...]:
        """The given tokens that are still to come."""
        return self._tokens[state[0] :]
