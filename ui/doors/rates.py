"""Rate limits over a sliding window."""

from collections import deque
from time import monotonic

MOST_KEYS = 10_000


class Rate:
    """At most `most` events of one key within `seconds`. For one thread; the keys that were used longest ago are forgotten."""

    def __init__(self, most: int, seconds: float = 60.0) -> None:
        self._most, self._seconds = most, seconds
        self._events: dict[str, deque[float]] = {}

    def is_full(self, key: str) -> bool:
        """Whether one more event of the key would be too many."""
        events = self._events.get(key, deque())
        while events and events[0] < monotonic() - self._seconds:
            events.popleft()
        return len(events) >= self._most

    def count(self, key: str) -> None:
        """An event has happened."""
        events = self._events.pop(key, deque(maxlen=self._most))
        events.append(monotonic())
        self._events[key] = events
        if len(self._events) > MOST_KEYS:
            del self._events[next(iter(self._events))]

    def allows(self, key: str) -> bool:
        """Count an event, unless it would be too many."""
        if self.is_full(key):
            return False
        self.count(key)
        return True
