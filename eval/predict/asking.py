"""Who asks what, and in which order: questions one after the other, or several threads at once. Scores nothing."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event

from eval.datasets.official import Example
from eval.predict.record import Predict, Prediction

Answered = tuple[Example, Prediction | None]


def answered(lines: Sequence[Sequence[Example]], predict: Predict, at_once: int) -> Iterator[Answered]:
    """Each example with its prediction as soon as it is there; None where its database is not.

    The examples of a line are asked one after the other, those of so many lines `at_once`. With one line at a time nothing is
    asked while the caller is busy. What `predict` raises passes; the lines that run end with the question they are at.
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
    told: SimpleQueue[Answered | Future[None]] = SimpleQueue()
    stopped = Event()

    def ask(line: Sequence[Example]) -> None:
        for example in line:
            if stopped.is_set():
                return
            told.put(_answered(example, predict))

    with ThreadPoolExecutor(at_once, "question") as pool:
        try:
            for line in lines:
                pool.submit(ask, line).add_done_callback(told.put)
            yield from _until_all_end(told, len(lines))
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _until_all_end(told: "SimpleQueue[Answered | Future[None]]", running: int) -> Iterator[Answered]:
    """What the threads tell, until so many have ended. Raises what one of them ended by."""
    while running:
        item = told.get()
        if isinstance(item, Future):
            item.result()
            running -= 1
        else:
            yield item
