"""Stops one running query at its deadline, or when another thread says so. Knows no engine: it calls what it is given."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

REPEAT_S = 0.02
Reason = Literal["timeout", "interrupted"]


class Watchdog:
    """Around one query: `with Watchdog(deadline_s, cursor.interrupt) as watchdog: ...`.

    An engine forgets an interrupt that reaches it between two calls, so `stop` is repeated every 20 ms until the block ends.
    DuckDB 1.5 has no timeout of its own and SQLite's progress handler needs the interpreter lock at every call; a thread
    serves all engines alike.
    """

    def __init__(self, deadline_s: float, stop: Callable[[], object]) -> None:
        self.reason: Reason | None = None
        self._deadline_s = deadline_s
        self._stop = stop
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="query-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._wake.set()
        self._thread.join()

    def interrupt(self) -> None:
        """Stop the query now; its error then says "interrupted" instead of "timeout"."""
        self.reason = self.reason or "interrupted"
        self._wake.set()

    def _watch(self) -> None:
        self._wake.wait(self._deadline_s)
        while not self._over.is_set():
            self.reason = self.reason or "timeout"
            self._stop()
            self._over.wait(REPEAT_S)
