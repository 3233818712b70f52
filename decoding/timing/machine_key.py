"""The key of a measured time: a model in a number format, on a device of this machine, with so many threads and processes."""

import os
import platform

from decoding.serving.processes import processes_here
from decoding.serving.text_decoder import TextDecoder


def running_as(decoder: TextDecoder) -> str:
    """A loaded model's key, usable as a file name."""
    target = decoder.target
    name, dtype, runtime = decoder.name.replace(os.sep, "_"), target.weight_dtype, target.runtime
    count = processes_here()
    parts = [f"{count}_processes"] if count > 1 else []
    return "-".join((name, dtype, runtime, str(_threads(runtime)), *parts, platform.node()))


def _threads(runtime: str) -> int:
    if runtime == "kernels":
        from kernels.cpu.team import thread_count

        return thread_count()
    import torch

    return torch.get_num_threads()
