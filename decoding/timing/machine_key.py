"""The key of a measured time: a model in a number format, on a device of this machine, with a number of threads."""

import os
import platform

import torch

from decoding.serving.load import chosen_dtype, runtime_of
from decoding.serving.text_decoder import TextDecoder


def running_as(decoder: TextDecoder) -> str:
    """A loaded model's key, usable as a file name."""
    target = decoder.target
    return _key(decoder.name, target.weight_dtype, target.runtime)


def would_run_as(model: str, dtype: str = "auto", device: str = "auto") -> str:
    """The same key before anything is loaded, from the names that `load_text_decoder` takes. Raises ValueError."""
    weights, where = chosen_dtype(dtype, device, model)
    return _key(model, weights, runtime_of(weights, where))


def _key(model: str, dtype: torch.dtype, runtime: str) -> str:
    parts = (model.replace(os.sep, "_"), str(dtype).removeprefix("torch."), runtime, str(torch.get_num_threads()))
    return "-".join((*parts, platform.node()))
