"""Lets agents in the workers of a Ray cluster answer questions. The process that asks scores and records them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from decoding.serving.ray_workers import ray_workers
from eval.datasets.official import Example
from eval.predict.record import Predict, Prediction


class _Worker:
    """A Ray actor: one agent with its model, loaded on the worker's machine."""

    def __init__(self, make: Callable[[], Predict]) -> None:
        self._predict = make()

    def predict(self, example: Example) -> Prediction:
        return self._predict(example)


@contextmanager
def ray_predict(address: str, workers: int | None, make: Callable[[], Predict]) -> Iterator[tuple[Predict, int]]:
    """A `Predict` that lets an idle worker answer, and the number of threads that can ask it at once.

    `make` runs in the workers, which `ray_workers` describes; databases must have the same paths there. Raises ClusterError.
    """
    with ray_workers(address, workers, _Worker, make) as actors:
        import ray

        idle: SimpleQueue[Any] = SimpleQueue()
        for actor in actors:
            idle.put(actor)

        def predict(example: Example) -> Prediction:
            worker = idle.get()
            try:
                prediction: Prediction = ray.get(worker.predict.remote(example))
                return prediction
            finally:
                idle.put(worker)

        yield predict, len(actors)
