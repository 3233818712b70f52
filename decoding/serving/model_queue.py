"""The one queue for a model, and the batches in which it decodes several texts together.

The queue is first come, first served, and every wait can be cancelled. One forward serves all texts that are in a round
(continuous batching). Texts join and leave between rounds, so a text is the same as alone.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import Condition
from time import perf_counter
from typing import TypeVar

from decoding.engine.loop import Decoding, Request, advance
from decoding.engine.method import PROMPT_ROWS
from decoding.engine.rounds import Round
from decoding.engine.target import AnyTarget
from decoding.targets.own_thread import hold_torch_to_one_thread

_PATIENCE = 0.25  # share of the last round's time for which a round waits for callers still busy with their text
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A caller's request for the next round of its sequences."""

    live: Sequence[Decoding]
    answer: Future[list[Round | Exception | None]] = field(default_factory=Future)


class Batcher:
    """Owns a target: everything that touches it runs on one thread of its own. There may be many callers; `model_queue`
    decides how many sequences are decoded at once.

    prompt_rows: of newcomers' prompts in a forward that texts under way wait for; 0: prompts are read whole. Raises ValueError
    for fewer.
    """

    def __init__(self, target: AnyTarget, prompt_rows: int = PROMPT_ROWS) -> None:
        if prompt_rows < 0:
            raise ValueError(f"prompt_rows must be 0 (prompts are read whole) or more, not {prompt_rows}")
        self._target, self._prompt_rows = target, prompt_rows
        self._has_kernels = target.runtime == "kernels"  # which heads on torch must not disturb
        self._thread = ThreadPoolExecutor(1, "decoder")
        self._changed = Condition()
        self._open = 0  # calls that have sequences
        self._asked: list[_Asked] = []
        self._round_s = 0.0

    def decode(
        self, requests: Sequence[Request], *, cancelled: Callable[[int], bool] = lambda sequence: False
    ) -> Generator[Round, None, None]:
        """Like `loop.decode`, but together with the other callers' requests."""
        with ExitStack() as opened:
            live = self._opened(requests, opened)
            while live := [one for one in live if one.room > 0 and not cancelled(one.index)]:
                for outcome in self._round(live):
                    if isinstance(outcome, Exception):
                        raise outcome
                    if outcome is not None:
                        yield outcome

    def _opened(self, requests: Sequence[Request], opened: ExitStack) -> list[Decoding]:
        """The requests' sequences, which `opened` closes."""
        sequences = ExitStack()
        opened.callback(self.run, sequences.close)
        live = self.run(lambda: [Decoding(i, self._target, request, sequences) for i, request in enumerate(requests)])
        self._count(1)
        opened.callback(self._count, -1)
        return live

    def run(self, do: Callable[[], Done]) -> Done:
        """Do something with the target between rounds, while nothing else uses it."""
        return self._thread.submit(do).result()

    def _count(self, change: int) -> None:
        with self._changed:
            self._open += change
            self._changed.notify_all()

    def _round(self, live: Sequence[Decoding]) -> list[Round | Exception | None]:
        """Ask for a round, and for a turn of the thread. One turn serves all waiting callers, so later turns may be idle."""
        asked = _Asked(live)
        with self._changed:
            self._asked.append(asked)
            self._changed.notify_all()
        self._thread.submit(self._turn)
        try:
            return asked.answer.result()
        except BaseException:  # interrupted: nobody waits for the answer any more
            with self._changed:
                self._asked = [one for one in self._asked if one is not asked]
            raise

    def _turn(self) -> None:
        with self._changed:
            if self._asked:
                self._changed.wait_for(lambda: len(self._asked) >= self._open, _PATIENCE * self._round_s)
            served, self._asked = self._asked, []
        if not served:
            return
        start = perf_counter()
        try:
            if self._has_kernels:
                hold_torch_to_one_thread()
            outcomes = advance(self._target, [one for asked in served for one in asked.live], self._prompt_rows)
            found = [list(islice(outcomes, len(asked.live))) for asked in served]
        except Exception as error:  # the forward itself failed, and so did everyone's round
            found = [[error] for _ in served]
        self._round_s = perf_counter() - start
        for asked, answer in zip(served, found, strict=True):
            asked.answer.set_result(answer)


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
