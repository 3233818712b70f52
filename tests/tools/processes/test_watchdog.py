"""The watchdog alone: an engine that forgets interrupts, a query that ends in time, who asked for the end."""

import threading
import time

from tools.processes import Watchdog


class Forgetful:
    """A query that only the third interrupt stops, as one does whose first two arrive between calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.calls += 1
        if self.calls == 3:
            self.stopped.set()


def test_it_asks_until_the_query_stops() -> None:
    query = Forgetful()
    with Watchdog(0.05, query.stop) as watchdog:
        assert query.stopped.wait(2.0)
    assert watchdog.reason == "timeout"


def test_the_first_reason_stays() -> None:
    query = Forgetful()
    with Watchdog(60.0, query.stop) as watchdog:
        watchdog.interrupt()
        assert query.stopped.wait(2.0)
        watchdog.interrupt()
    assert watchdog.reason == "interrupted"


def test_a_query_in_time_is_left_alone() -> None:
    query, started, threads = Forgetful(), time.monotonic(), threading.active_count()
    with Watchdog(60.0, query.stop) as watchdog:
        pass
    assert (watchdog.reason, query.calls) == (None, 0)
    assert time.monotonic() - started < 1.0
    assert threading.active_count() == threads
