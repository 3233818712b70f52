"""Batches of prompts decoded by the workers of a Ray cluster.

Results come back in the order of the batches, so that the file is the same as if one process had collected it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from decoding.serving.ray_workers import ray_workers
from decoding.serving.text_decoder import TextDecoder
from decoding.tokenizer.tokenizer import Tokenizer
from decoding.training.collect.collect import Asked, Batches, Kind

Record = TypeVar("Record")


class _Worker:
    """An actor with one model, which it loads on its own node."""

    def __init__(self, load: Callable[[], TextDecoder], kind: Callable[[Tokenizer], Kind[Any]]) -> None:
        decoder = load()
        self._batches = Batches(decoder, kind(decoder.tokenizer))

    def decode(self, batch: Sequence[Asked]) -> list[Any]:
        return self._batches(batch)


def ray_decoded(
    address: str,
    workers: int | None,
    load: Callable[[], TextDecoder],
    kind: Callable[[Tokenizer], Kind[Record]],
    batches: Sequence[Sequence[Asked]],
) -> Iterator[list[Record | str]]:
    """What `Batches` returns for each batch, in order. `load` and `kind` run in the workers, which `ray_workers` describes.

    Raises ClusterError if there is no Ray or no cluster.
    """
    with ray_workers(address, workers, _Worker, load, kind) as actors:
        from ray.util import ActorPool

        pool: Any = ActorPool(actors)
        yield from pool.map(lambda worker, batch: worker.decode.remote(batch), batches)
