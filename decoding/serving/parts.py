"""Models on several processes: loading of the part that each computes, and the workers of a Ray cluster.

Ray is optional, and imported only here. A worker that dies is restarted, on another machine if necessary, and repeats its last
task; so tasks must have no effect other than their result.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoding.checkpoints.adapter import merged_weights, read_adapter
from decoding.checkpoints.mask_adapter import read_mask_adapter
from decoding.checkpoints.model_config import HEAD, load_config
from decoding.checkpoints.weight_files import check_parts, read_parts, read_weights
from decoding.errors import ModelError, UnsupportedModel, pip_install
from decoding.targets.fast_target import FastModel
from decoding.targets.llama_model import LlamaModel
from decoding.targets.parallel import Group, GroupShare, Leader, Message, ParallelTarget, Split
from kernels.available import runs_kernels

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def parallel_target(
    leader: Leader, path: Path, dtype: str, device: str, adapter: Path | None, cache_bytes: int
) -> ParallelTarget:
    """The target of the first process, when all have loaded their parts of the checkpoint `path`.

    dtype: "fp32" or "bf16". adapter: its folder. Raises ModelUnavailable, UnsupportedModel, ProcessLost.
    """
    if dtype not in _DTYPES:
        raise UnsupportedModel(
            f"{dtype} weights are computed by one process: give --dtype fp32 or bf16, or leave torchrun out"
        )
    Split(load_config(path), 0, leader.group.size)  # what cannot be split is refused before the others are told
    check_parts(path)
    about = {
        "path": str(path.resolve()),
        "dtype": dtype,
        "device": device,
        "adapter": str(adapter) if adapter else None,
    }
    number = leader.new_number()
    with leader.told("load", model=number, **about):
        model = part_of_model(leader.group, about)
    leader.adopt(model, number)
    return ParallelTarget(model, leader, partial(_whole_head, path, adapter, model), cache_bytes)


def part_of_model(group: Group, about: Message) -> LlamaModel:
    """This process's part of a model, ready to compute."""
    path, device, dtype = Path(about["path"]), group.device(about["device"]), _DTYPES[about["dtype"]]
    adapter = Path(about["adapter"]) if about["adapter"] else None
    split = Split(load_config(path), group.rank, group.size)
    weights = split.all_cut(_merged(path, adapter)) if adapter else read_parts(path, split.cut)
    share = GroupShare(split, group)
    if not runs_kernels(device):
        masks = read_mask_adapter(adapter) if adapter else None
        return FastModel(split.part, weights, dtype, device, masks, share)
    from decoding.targets.cuda import CudaModel

    model = CudaModel(split.part, weights, dtype, device, share=share)
    model.prepare()
    return model


def _merged(path: Path, adapter: Path | None) -> Any:
    return merged_weights(read_weights(path), read_adapter(adapter) if adapter else None)


def _whole_head(path: Path, adapter: Path | None, model: LlamaModel) -> Tensor:
    if model.config.tie_embeddings:
        return model.embedding
    head: Tensor = next(tensor for name, tensor in _merged(path, adapter) if name == HEAD)
    return head.to(model.device, model.dtype)


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
