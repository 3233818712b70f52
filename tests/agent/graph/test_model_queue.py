"""Guards the turns at the model: first come, first served, and nobody waits for a question that was called off."""

import threading
import time

import pytest

from agent.graph.model_queue import Seat, Stopped, Turns
from agent.observe.events import Wrote
from tests.agent.conftest import Talk


def hold(turns: Turns, order: list[int], number: int, gate: threading.Event) -> threading.Thread:
    def work() -> None:
        with Seat(turns).turn():
            order.append(number)
            gate.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def wait_until(done: object, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not done() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.002)


def test_turns_come_in_the_order_of_asking() -> None:
    turns, order, gate = Turns(), list[int](), threading.Event()
    threads = []
    for number in range(6):
        threads.append(hold(turns, order, number, gate))
        wait_until(lambda number=number: len(turns) == number + 1)
    gate.set()
    for thread in threads:
        thread.join(60)
    assert order == list(range(6))


def test_one_holds_the_model_at_a_time() -> None:
    turns, gate, order = Turns(), threading.Event(), list[int]()
    first = hold(turns, order, 0, gate)
    wait_until(lambda: order == [0])
    second = hold(turns, order, 1, gate)
    wait_until(lambda: len(turns) == 2)
    assert order == [0]
    gate.set()
    first.join(60)
    second.join(60)


def test_as_many_as_there_are_places_hold_it_together() -> None:
    turns, gate, order, heard = Turns(places=2), threading.Event(), list[int](), list[int]()
    threads = [hold(turns, order, number, gate) for number in range(2)]
    wait_until(lambda: len(order) == 2)
    seat = Seat(turns)
    with pytest.raises(Stopped), seat.turn(lambda ahead: (heard.append(ahead), seat.stop())):  # type: ignore[func-returns-value]
        pytest.fail("a third one came in")
    assert heard == [1]
    gate.set()
    for thread in threads:
        thread.join(60)


def test_who_waits_hears_how_many_come_first_and_may_leave() -> None:
    turns, gate, heard = Turns(), threading.Event(), list[int]()
    first = hold(turns, [], 0, gate)
    wait_until(lambda: len(turns) == 1)
    seat = Seat(turns)

    def hear(ahead: int) -> None:
        heard.append(ahead)
        seat.stop()

    with pytest.raises(Stopped), seat.turn(hear):
        pass
    assert heard == [1]
    assert len(turns) == 1
    gate.set()
    first.join(60)


def test_a_question_called_off_while_it_decodes_does_not_go_on() -> None:
    seat = Seat()
    with pytest.raises(Stopped), seat.turn():
        seat.stop()
    seat.go()
    with seat.turn():
        pass


def test_stop_reaches_a_model_in_the_middle_of_its_answer(talk: Talk) -> None:
    """Any chat model that streams, not only the decoder of this project."""
    conversation = talk("p", "SELECT name FROM singer")
    conversation.toolbox.model.sleep = 0.1  # type: ignore[attr-defined]  # a letter: who listens keeps up
    written: list[str] = []

    def listen() -> None:
        for event in conversation.events("Names?"):
            if isinstance(event, Wrote) and event.step == "generate":
                written.append(event.text)
                conversation.toolbox.seat.stop()

    with pytest.raises(Stopped):
        listen()
    assert 0 < len("".join(written)) < len("SELECT name FROM singer")
