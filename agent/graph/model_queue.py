"""Whose turn it is to use the model: so many at a time, first come first served, and every wait can be given up."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_S = 0.05  # how long a stop may go unnoticed by one who waits


class Stopped(Exception):
    """The person who asked wants no answer any more."""


class Turns:
    """A queue of those who want the model. A turn is one step of the agent, so a long question holds nobody up for long.

    places: turns at once, for a model that decodes several texts together.
    """

    def __init__(self, places: int = 1) -> None:
        self._places = places
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    def __len__(self) -> int:
        """Those who hold the model or wait for it."""
        return len(self._queue)

    @contextmanager
    def take(self, stopped: Callable[[], bool], waiting: Callable[[int], None]) -> Iterator[None]:
        """Wait for one's turn and hold it. `waiting(n)` is called when n others must be done first. Raises Stopped."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
        try:
            self._wait(ticket, stopped, waiting)
            yield
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _wait(self, ticket: object, stopped: Callable[[], bool], waiting: Callable[[int], None]) -> None:
        told = 0
        while True:
            with self._changed:
                ahead = max(0, self._queue.index(ticket) - self._places + 1)
                if ahead and ahead == told:
                    self._changed.wait(_LOOK_S)
            if stopped():
                raise Stopped
            if not ahead:
                return
            if ahead != told:
                waiting(ahead)
                told = ahead


class Seat:
    """One asker's place at the model: takes turns among others, and says whether the asker has called it off."""

    def __init__(self, turns: Turns | None = None) -> None:
        self._turns = Turns() if turns is None else turns
        self._stop = threading.Event()

    def stop(self) -> None:
        """Call the running question off; `go` makes ready for the next."""
        self._stop.set()

    def go(self) -> None:
        self._stop.clear()

    def stopped(self) -> bool:
        return self._stop.is_set()

    def check(self) -> None:
        """Raise Stopped when the question was called off."""
        if self.stopped():
            raise Stopped

    @contextmanager
    def turn(self, waiting: Callable[[int], None] = lambda ahead: None) -> Iterator[None]:
        """Hold the model; see `Turns.take`. Raises Stopped, also when the question was called off meanwhile."""
        with self._turns.take(self.stopped, waiting):
            yield
            self.check()
