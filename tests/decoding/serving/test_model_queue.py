"""Guards the queue for a model: first come, first served, no seat is lost, and a stopped caller does not wait.

Several threads on one target: the same texts as alone, shared forwards, and no caller suffers from another's error.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput, ForwardOutput, PromptTooLong
from decoding.methods.registry import load_method
from decoding.serving.model_queue import Batcher, ModelQueue, QueueFull, Stopped
from tests.decoding.models.doubles import Blank, Fuzz
from tests.decoding.models.toy import ToySequence, ToyTarget


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


PROMPTS = [tuple(range(1, 4 + index)) for index in range(6)]


def request(index: int, method: Any = None, **options: Any) -> Request:
    method = method or Fuzz(index)
    return Request(PROMPTS[index], method, 30, Sampler(0.7, index), **options)


class OnKernels(ToyTarget):
    runtime = "kernels"


class Noting(Fuzz):
    """Notes how many threads torch has while it drafts."""

    def __init__(self) -> None:
        super().__init__(0)
        self.threads: set[int] = set()

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self.threads.add(torch.get_num_threads())
        return super().propose(tokens, room)


@pytest.mark.parametrize(("target", "wanted"), [(OnKernels, {1}), (ToyTarget, {2})])
def test_torch_has_one_thread_beside_our_kernels_and_elsewhere_as_many_as_before(
    target: type[ToyTarget], wanted: set[int]
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        method = Noting()
        list(Batcher(target()).decode([request(0, method)]))
        assert method.threads == wanted
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as another:
            assert another.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_torchs_threads_are_counted_once_for_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count starts new threads, which look for work while the next forwards run."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    set_to: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    try:
        batcher = Batcher(OnKernels())
        assert sum(1 for _ in batcher.decode([request(0)])) > 1
        list(batcher.decode([request(1)]))
        assert set_to == [1, 2]
    finally:
        monkeypatch.undo()
        torch.set_num_threads(before)


def text(rounds: Iterator[Round] | Sequence[Round]) -> list[int]:
    return [token for r in rounds for token in r.text_tokens]


class Counting(ToyTarget):
    """Counts forwards, and fails where two threads are in it at once."""

    def __init__(self, pause_s: float = 0.0) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.pause_s, self._inside = pause_s, threading.Lock()

    def score(self, work: Sequence[ForwardInput[ToySequence]]) -> list[ForwardOutput]:
        assert self._inside.acquire(blocking=False), "two threads are in the target"
        try:
            sleep(self.pause_s)
            self.sizes.append(len(work))
            return super().score(work)
        finally:
            self._inside.release()


def in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result(timeout=30) for one in [pool.submit(call) for call in calls]]


def test_texts_are_those_of_lone_decoding_and_forwards_are_shared() -> None:
    target = Counting(pause_s=0.002)
    batcher = Batcher(target)
    together = in_threads([lambda i=i: text(batcher.decode([request(i)])) for i in range(6)])  # type: ignore[misc]
    alone = [text(decode(ToyTarget(), [request(i)])) for i in range(6)]
    assert together == alone
    rounds = sum(len(list(decode(ToyTarget(), [request(i)]))) for i in range(6))
    assert sum(target.sizes) == rounds and len(target.sizes) < rounds / 2


def test_a_round_names_its_sequence_within_its_own_call() -> None:
    rounds = list(Batcher(ToyTarget()).decode([request(0), request(1)]))
    assert {r.sequence for r in rounds} == {0, 1}
    assert text([r for r in rounds if r.sequence == 1]) == text(decode(ToyTarget(), [request(1)]))


class Broken(Blank):
    """Drafts well for a while."""

    rounds = 0

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self.rounds += 1
        if self.rounds == 3:
            raise RuntimeError("the draft head is gone")
        return Draft()


def test_a_failing_method_ends_its_own_text_alone() -> None:
    batcher = Batcher(Counting(pause_s=0.002))
    fine, broken = (lambda: text(batcher.decode([request(0)]))), (lambda: text(batcher.decode([request(1, Broken())])))
    with ThreadPoolExecutor(2) as pool:
        good, bad = pool.submit(fine), pool.submit(broken)
        with pytest.raises(RuntimeError, match="head is gone"):
            bad.result(timeout=30)
        assert good.result(timeout=30) == text(decode(ToyTarget(), [request(0)]))
    assert text(batcher.decode([request(1)])) == text(decode(ToyTarget(), [request(1)]))


def test_a_prompt_that_is_too_long_is_refused_and_leaves_nothing_open() -> None:
    target = ToyTarget()
    batcher = Batcher(target)
    with pytest.raises(PromptTooLong):
        list(batcher.decode([request(0), Request((), load_method("plain"), 5)]))
    assert len(target.closed) == 1
    assert text(batcher.decode([request(0)])) == text(decode(ToyTarget(), [request(0)]))


def test_an_idle_reader_does_not_stop_the_others() -> None:
    batcher = Batcher(ToyTarget())
    idle = batcher.decode([request(0)])
    first = next(idle)
    assert in_threads([lambda: text(batcher.decode([request(1)]))]) == [text(decode(ToyTarget(), [request(1)]))]
    assert text([first, *idle]) == text(decode(ToyTarget(), [request(0)]))


def test_a_forward_that_fails_fails_everybodys_round_and_the_next_call_works() -> None:
    class Failing(ToyTarget):
        fails = True

        def score(self, work: Sequence[ForwardInput[ToySequence]]) -> list[ForwardOutput]:
            if self.fails:
                raise MemoryError("no room")
            return super().score(work)

    target = Failing()
    batcher = Batcher(target)
    with pytest.raises(MemoryError, match="no room"):
        list(batcher.decode([request(0)]))
    target.fails = False
    assert text(batcher.decode([request(0)])) == text(decode(ToyTarget(), [request(0)]))
