"""Asks questions one after the other, or in several threads at once. Scores nothing."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event

from eval.datasets.official import Example
from eval.predict.record import Predict, Prediction

Answered = tuple[Example, Prediction | None]


def answered(lines: Sequence[Sequence[Example]], predict: Predict, at_once: int) -> Iterator[Answered]:
    """Each example with its prediction, as soon as that is known; None for an example without database.

    The examples of a line are asked in order, and `at_once` lines run at the same time. With one line at a time, nothing is
    asked while the caller is busy. Raises what `predict` raises; running lines then stop after their current question.
    """
    if at_once > 1:
        yield from _at_once(lines, predict, at_once)
        return
    for line in lines:
        for example in line:
            yield _answered(example, predict)


def _answered(example: Example, predict: Predict) -> Answered:
    return example, predict(example) if example.executable else None


def _at_once(lines: Sequence[Sequence[Example]], predict: Predict, at_once: int) -> Iterator[Answered]:
    answers: SimpleQueue[Answered | Future[None]] = SimpleQueue()
    stopped = Event()

    def ask(line: Sequence[Example]) -> None:
        for example in line:
            if stopped.is_set():
                return
            answers.put(_answered(example, predict))

    with ThreadPoolExecutor(at_once, "question") as pool:
        try:
            for line in lines:
                pool.submit(ask, line).add_done_callback(answers.put)
            yield from _until_all_end(answers, len(lines))
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _until_all_end(answers: "SimpleQueue[Answered | Future[None]]", running: int) -> Iterator[Answered]:
    """What the threads answer, until `running` of them have ended. Raises the error with which one of them ended."""
    while running:
        item = answers.get()
        if isinstance(item, Future):
            item.result()
            running -= 1
        else:
            yield item
