"""The first of several processes: it tells the others what to compute before it computes the same.

Others do not decide anything. They are told which rows go into which table, and what became of the tables since: that goes
with the next forward, so a round is one message.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary, finalize

from decoding.targets.parallel.group import Group, ProcessLost

_PATIENCE_S = 10.0  # for a forward that goes on when all should end


class Leader:
    """Numbers what all processes have (models, tables), and sends messages. Any thread may use it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._turn = RLock()
        self._is_in_step = True
        self._changes: deque[tuple[Any, ...]] = deque()
        self._numbers: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._next = count(1)

    def number(self, thing: object) -> int:
        """By which the others know it."""
        known = self._numbers.get(thing)
        return self.adopt(thing, self.new_number()) if known is None else known

    def new_number(self) -> int:
        return next(self._next)

    def adopt(self, thing: object, number: int) -> int:
        """The others know a thing by this number, and forget it when it is gone here."""
        self._numbers[thing] = number
        finalize(thing, self._changes.append, ("forget", number)).atexit = False
        return number

    def note(self, *change: Any) -> None:
        """A change of a table, for the next message; see `follower`."""
        self._changes.append(change)

    @contextmanager
    def told(self, do: str, **about: Any) -> Iterator[None]:
        """Tell the others to do something; what is done inside is the same. Raises ProcessLost.

        If it fails here, the others wait in the middle of it, so nothing more can be computed together.
        """
        with self._turn:
            if not self._is_in_step:
                raise ProcessLost("a forward of several processes was broken off; start all of them again")
            self._is_in_step = False
            changes = [self._changes.popleft() for _ in range(len(self._changes))]
            self.group.send({"do": do, "changes": changes, **about})
            yield
            self._is_in_step = True

    def end(self) -> None:
        """Let the others end, and leave the group."""
        if self._turn.acquire(timeout=_PATIENCE_S):
            try:
                if self._is_in_step:
                    self.group.send({"do": "end"})
            except ProcessLost:
                pass
            finally:
                self._turn.release()
        self.group.leave()
