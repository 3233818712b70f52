"""Runs the whole GPU benchmark."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from eval.speed.gpu.kernels import Shape, Timer, gpu_ms, measure, measured_machine
from eval.speed.gpu.targets import SHAPES, Sizes, measure_target


def chosen_models(names: str) -> list[str]:
    """Names of `SHAPES` from a comma-separated list, "all" or "none". Raises UnknownShape."""
    if names in ("all", "none"):
        return list(SHAPES) if names == "all" else []
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in SHAPES:
            raise UnknownShape(f"no sizes are known of {name!r}; choose from: {', '.join(SHAPES)}")
    return chosen


class UnknownShape(ValueError):
    """The sizes of a model that was named are not in the table."""


@torch.no_grad()
def run(models: Sequence[str], say: Callable[[str], None], timer: Timer = gpu_ms) -> dict[str, Any]:
    """Run all parts; returns the measurements by part."""
    torch.manual_seed(0)
    machine = measured_machine(timer)
    kernels = list(measure(Shape(), machine, timer, say))
    forwards = [
        row for name in models for row in measure_target(name, SHAPES[name], machine.bytes_per_ms, Sizes(), "cuda", say)
    ]
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_gb_per_s": machine.bytes_per_ms / 1e6,
        "bf16_tflop_per_s": machine.operations_per_ms / 1e9,
        "kernels": kernels,
        "forwards": forwards,
    }
