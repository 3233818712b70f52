"""Batches of prompts decoded by the workers of a Ray cluster. Ray is optional, and imported only here.

Results come back in the order of the batches, so that a collection's file is that of one process.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from decoding.text import TextDecoder
from decoding.tokenizer import Tokenizer
from decoding.training.collecting import Asked, Batches, Kind
from decoding.training.config import TrainingError

Record = TypeVar("Record")


class _Worker:
    """An actor: one model, loaded where it runs."""

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
    """What `Batches` makes of each batch, in order.

    address: of the cluster ("host:port", "auto" for the one that this machine is part of, "local" for one of its own).
    workers: models in all; None: one for each GPU of the cluster, else one for each machine. `load` and `kind` run in the
    workers, where this package and the model must be. Raises TrainingError where there is no Ray or no cluster.
    """
    ray = _connected(address)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        actor = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0)(_Worker)
        pool = ray.util.ActorPool([actor.remote(load, kind) for _ in range(workers or gpus or len(ray.nodes()))])
        yield from pool.map(lambda worker, batch: worker.decode.remote(batch), batches)
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise TrainingError("Ray is not installed: pip install 'sqlagent[ray]', or leave out --ray") from error
    try:
        ray.init(address=address, include_dashboard=False if address == "local" else None, logging_level="WARNING")
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise TrainingError(
            f"no Ray cluster answers at {address} ({reason}): start one with `ray start --head`"
        ) from error
    return ray
