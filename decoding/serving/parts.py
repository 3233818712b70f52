"""Loads a model that several processes compute together: each reads its part alone from the files of the checkpoint."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoding.checkpoints.adapter import merged_weights, read_adapter
from decoding.checkpoints.mask_adapter import read_mask_adapter
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import check_parts, read_parts, read_weights
from decoding.errors import UnsupportedModel
from decoding.targets.fast_target import FastModel
from decoding.targets.int8.rounding import HEAD
from decoding.targets.llama_model import LlamaModel
from decoding.targets.parallel import GroupShare, ParallelTarget, Split
from decoding.targets.process_group import Group, Leader, Message
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
