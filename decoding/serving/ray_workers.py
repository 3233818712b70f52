"""The workers of a Ray cluster: actors that each hold a model. Ray is optional, and imported only here.

A worker that dies is restarted, on another machine if necessary, and repeats its last task; so tasks must have no effect other
than their result.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import WARNING
from typing import Any

from decoding.errors import ModelError, pip_install

_RESTARTS = 3  # per worker; one that dies more often will die again


class ClusterError(ModelError):
    """There is no Ray or no cluster, or a worker keeps dying; the message is one line that says what to do."""


@contextmanager
def ray_workers(address: str, workers: int | None, kind: type[Any], *arguments: object) -> Iterator[list[Any]]:
    """Ray actors, each a `kind(*arguments)` with one CPU, and one GPU if the cluster has any.

    address: of the cluster ("host:port", "auto" for the one that this machine is part of, "local" to start one here).
    workers: None: one for each GPU of the cluster, or without GPUs one for each machine. This package, and what the arguments
    name, must be on every machine. Raises ClusterError.
    """
    ray = _connected(address)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        lasting = {"max_restarts": _RESTARTS, "max_task_retries": _RESTARTS}
        actor = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, **lasting)(kind)
        yield [actor.remote(*arguments) for _ in range(workers or gpus or len(ray.nodes()))]
    except ray.exceptions.RayActorError as error:
        raise ClusterError(f"a worker died {_RESTARTS + 1} times; its own message is above") from error
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise ClusterError(f"Ray is not installed: {pip_install('ray')}, or leave out --ray") from error
    try:
        ray.init(address=address, include_dashboard=False if address == "local" else None, logging_level=WARNING)
    except Exception as error:  # Ray raises plain ones if a local node does not start
        reason = str(error).strip().partition("\n")[0]
        raise ClusterError(
            f"no Ray cluster answers at {address} ({reason}): start one with `ray start --head`"
        ) from error
    return ray
