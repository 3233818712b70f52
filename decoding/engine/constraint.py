"""What a grammar must offer to steer decoding. States are immutable, so a draft's branches may share them."""

from collections.abc import Hashable
from typing import Protocol, TypeVar, runtime_checkable

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
