"""The key of a measured time: a model in a number format, on a device of this machine, with so many threads and processes."""

import os
import platform

from decoding.serving.load import chosen_dtype, runtime_of
from decoding.serving.processes import processes_here
from decoding.serving.text_decoder import TextDecoder


def running_as(decoder: TextDecoder) -> str:
    """A loaded model's key, usable as a file name."""
    target = decoder.target
    return _key(decoder.name, target.weight_dtype, target.runtime)


def would_run_as(model: str, dtype: str = "auto", device: str = "auto", adapter: str = "") -> str:
    """The same key before anything is loaded, from the names that `load_text_decoder` takes. Raises ValueError."""
    weights, where = chosen_dtype(dtype, device, model)
    return _key(f"{model} {adapter}".rstrip(), weights, runtime_of(weights, where))


def _key(model: str, dtype: str, runtime: str) -> str:
    count = processes_here()
    parts = [f"{count}_processes"] if count > 1 else []
    return "-".join((model.replace(os.sep, "_"), dtype, runtime, str(_threads(runtime)), *parts, platform.node()))


def _threads(runtime: str) -> int:
    if runtime == "kernels":
        from kernels.cpu.team import thread_count

        return thread_count()
    import torch

    return torch.get_num_threads()
