"""A lower bound for any implementation on this machine: the time to read a model's weights, and to multiply with them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

from decoding.checkpoints.resolve import read_weights, resolve
from decoding.serving.text_decoder import TextDecoder

_MOST_READ = 256 << 20  # bytes: fewer where the model has fewer, as caches hold a part of them
_MATRIX = 1024  # rows and columns
_REPEATS = 7


@dataclass(frozen=True, slots=True)
class Floor:
    """The size of a model's matrices, and this machine's speed with the threads and the device that are used."""

    weight_bytes: int  # read by every forward
    multiplications: int  # per row; one for each parameter
    bytes_per_s: float
    flops_per_s: float

    def ms(self, rows: int) -> float:
        """Least milliseconds for a forward of `rows` rows without attention, if reading and multiplying overlap fully."""
        return 1e3 * max(self.weight_bytes / self.bytes_per_s, 2 * rows * self.multiplications / self.flops_per_s)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"plain_step_ms": self.ms(1), "draft_of_16_ms": self.ms(17)}


def measure_floor(decoder: TextDecoder) -> Floor:
    """Measure the floor as the best of several runs, since that is when nothing else disturbs the machine."""
    head = torch.as_tensor(decoder.target.lm_head)
    layers = _layer_parameters(decoder.name)
    is_small = decoder.target.weight_dtype == "int8"
    weight_bytes = (layers + head.numel()) * (1 if is_small else head.itemsize)
    read = torch.ones(min(weight_bytes, _MOST_READ) // 4, device=head.device)
    left, right = torch.zeros(2, _MATRIX, _MATRIX, dtype=head.dtype, device=head.device)
    if is_small:
        left, right = left.to(torch.int8), right.to(torch.int8)
    multiply = torch._int_mm if is_small else torch.mm
    return Floor(
        weight_bytes=weight_bytes,
        multiplications=layers + head.numel(),
        bytes_per_s=4 * read.numel() / _best_s(lambda: torch.dot(read, read)),
        flops_per_s=2 * _MATRIX**3 / _best_s(lambda: multiply(left, right)),
    )


def _layer_parameters(name: str) -> int:
    """Number of parameters in the layers' matrices."""
    folder = resolve(name)
    return sum(tensor.numel() for key, tensor in read_weights(folder) if ".layers." in key and tensor.dim() == 2)


def _best_s(do: Callable[[], torch.Tensor]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = perf_counter()
        do().flatten()[0].item()  # waits for the device
        times.append(perf_counter() - start)
    return min(times)
