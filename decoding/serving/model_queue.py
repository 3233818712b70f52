"""The one queue for a model: first come, first served, and every wait can be cancelled."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_S = 0.05  # how long it may take until a waiting caller notices that it was stopped


class Stopped(Exception):
    """The caller no longer wants an answer."""


class QueueFull(RuntimeError):
    """The maximum number of callers already use the model or wait for it."""


def never() -> bool:
    """The `stopped` of a caller that is never stopped."""
    return False


class ModelQueue:
    """Owns a model's seats. A seat is one sequence of the batch that is decoded together.

    most_callers: how many callers may hold seats or wait at once; None: any number.
    """

    def __init__(self, seats: int = 1, most_callers: int | None = None) -> None:
        self.seats, self.most_callers = seats, most_callers
        self._free, self._callers = seats, 0
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """The number of callers that hold seats or wait for them."""
        return self._callers

    @contextmanager
    def take(
        self, wanted: int = 1, stopped: Callable[[], bool] = never, waiting: Callable[[int], None] = lambda ahead: None
    ) -> Iterator[None]:
        """Wait for `wanted` seats (all of them, if there are fewer) and hold them.

        `waiting(n)` is called when at least n other callers must finish first. Raises Stopped, and QueueFull at once.
        """
        wanted = min(wanted, self.seats)
        with self._counted():
            self._wait(wanted, stopped, waiting)
            try:
                yield
            finally:
                self._give_back(wanted)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._changed:
            if self.most_callers is not None and self._callers >= self.most_callers:
                raise QueueFull(f"{self.most_callers} requests are under way; try again soon")
            self._callers += 1
        try:
            yield
        finally:
            with self._changed:
                self._callers -= 1

    def _wait(self, wanted: int, stopped: Callable[[], bool], waiting: Callable[[int], None]) -> None:
        ticket, reported = object(), 0
        with self._changed:
            self._line.append(ticket)
        try:
            while ahead := self._ahead(ticket, wanted, reported):
                if stopped():
                    raise Stopped
                if ahead != reported:
                    waiting(ahead)
                    reported = ahead
        except BaseException:
            self._leave_line(ticket)
            raise

    def _ahead(self, ticket: object, wanted: int, reported: int) -> int:
        """Callers that must finish first; 0 once the seats are taken. Waits a moment if that number was already reported."""
        with self._changed:
            ahead = self._line.index(ticket) + (self._free < wanted)
            if ahead and ahead == reported:
                self._changed.wait(_LOOK_S)
                ahead = self._line.index(ticket) + (self._free < wanted)
            if not ahead:
                self._line.remove(ticket)
                self._free -= wanted
                self._changed.notify_all()
            return ahead

    def _leave_line(self, ticket: object) -> None:
        with self._changed:
            if ticket in self._line:
                self._line.remove(ticket)
            self._changed.notify_all()

    def _give_back(self, seats: int) -> None:
        with self._changed:
            self._free += seats
            self._changed.notify_all()
