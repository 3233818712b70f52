"""Guards the queue for a model: first come, first served, no seat is lost, and a stopped caller does not wait."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from decoding.serving.model_queue import ModelQueue, QueueFull, Stopped


def hold(queue: ModelQueue, order: list[int], number: int, gate: threading.Event, wanted: int = 1) -> threading.Thread:
    def work() -> None:
        with queue.take(wanted):
            order.append(number)
            gate.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def wait_until(done: Callable[[], bool], deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not done() and time.monotonic() < end:
        time.sleep(0.002)


def refused(queue: ModelQueue, wanted: int = 1) -> list[int]:
    """How many come first, as a caller hears it who then gives up."""
    heard: list[int] = []
    with pytest.raises(Stopped), queue.take(wanted, lambda: bool(heard), heard.append):
        pytest.fail("there was a seat")
    return heard


def test_seats_go_in_the_order_of_asking() -> None:
    queue, order, gate = ModelQueue(), list[int](), threading.Event()
    threads = []
    for number in range(6):
        threads.append(hold(queue, order, number, gate))
        wait_until(lambda number=number: len(queue) == number + 1)  # type: ignore[misc]
    assert order == [0]
    gate.set()
    for thread in threads:
        thread.join(60)
    assert order == list(range(6)) and len(queue) == 0


def test_as_many_as_there_are_seats_hold_them_together() -> None:
    queue, gate, order = ModelQueue(seats=2), threading.Event(), list[int]()
    threads = [hold(queue, order, number, gate) for number in range(2)]
    wait_until(lambda: len(order) == 2)
    assert refused(queue) == [1]
    gate.set()
    for thread in threads:
        thread.join(60)


def test_a_caller_of_many_seats_is_not_overtaken_by_callers_of_one() -> None:
    queue, gate, order = ModelQueue(seats=3), threading.Event(), list[int]()
    threads = [hold(queue, order, 0, gate, wanted=2)]
    wait_until(lambda: order == [0])
    threads.append(hold(queue, order, 1, gate, wanted=3))
    wait_until(lambda: len(queue) == 2)
    assert refused(queue) == [1]  # a seat is free, and is kept for the one before
    gate.set()
    for thread in threads:
        thread.join(60)
    assert order == [0, 1]


def test_who_wants_more_seats_than_there_are_takes_them_all() -> None:
    queue = ModelQueue(seats=2)
    with queue.take(5):
        assert refused(queue) == [1]
    with queue.take(2):
        pass


def test_a_caller_who_gives_up_leaves_no_gap() -> None:
    queue = ModelQueue()
    with queue.take():
        assert refused(queue) == [1]
        assert len(queue) == 1
    with queue.take():
        assert len(queue) == 1


def test_one_caller_too_many_is_refused_at_once_and_the_place_comes_back() -> None:
    queue = ModelQueue(seats=1, most_callers=1)
    with queue.take(), pytest.raises(QueueFull, match="1 requests are under way"), queue.take():
        pytest.fail("let in")
    with queue.take():
        pass


def test_no_seat_is_lost_or_given_twice_under_a_crowd() -> None:
    queue, lock, held, most = ModelQueue(seats=3), threading.Lock(), [0], [0]

    def visit(number: int) -> None:
        wanted = number % 3 + 1
        try:
            with queue.take(wanted, lambda: number % 5 == 4):
                with lock:
                    held[0] += wanted
                    most[0] = max(most[0], held[0])
                time.sleep(0.001)
                with lock:
                    held[0] -= wanted
        except Stopped:
            assert number % 5 == 4

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(visit, range(120)))
    assert 0 < most[0] <= 3 and len(queue) == 0
    with queue.take(3):
        pass
