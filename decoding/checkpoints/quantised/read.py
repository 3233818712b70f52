"""Reads a quantised checkpoint's tensors as if it were plain: each module's weight by its usual name, dequantised or packed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from safetensors import safe_open
from torch import Tensor

from decoding.checkpoints.quantised.layouts import Parts
from decoding.checkpoints.quantised.scheme import Scheme
from decoding.errors import UnsupportedModel

_FIRST = {"weight_packed", "qweight"}  # the part in whose place the weight comes
_PARTS = {
    *_FIRST,
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "qzeros",
    "scales",
    "g_idx",
}
_OF_ACTIVATIONS = {"input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale", "q_scale"}


Made = TypeVar("Made")


def read_quantised(
    files: tuple[Path, ...], scheme: Scheme, make: Callable[[Scheme, Parts], Made]
) -> Iterator[tuple[str, Tensor | Made]]:
    """Names and tensors of the safetensors files; of weights that were quantised, what `make` makes of their parts, which is
    `layouts.dequantised` or `layouts.low_bit`.

    A module's parts may be in several files. Raises UnsupportedModel where parts are missing or do not fit, and what
    safetensors raises.
    """
    if any(file.suffix != ".safetensors" for file in files):
        raise UnsupportedModel(f"{scheme.name} weights are read from safetensors files only, not from {files[0].name}")
    with ExitStack() as opened:
        stored = {
            name: tensors
            for tensors in (opened.enter_context(safe_open(file, framework="pt")) for file in files)
            for name in tensors.keys()  # noqa: SIM118  (no mapping: it has no __iter__)
        }
        for name, tensors in stored.items():
            module, _, part = name.rpartition(".")
            if part in _FIRST or (part == "weight" and _is_scaled(module, stored)):
                yield f"{module}.weight", _weight(scheme, module, stored, make)
            elif part not in _PARTS | _OF_ACTIVATIONS:
                yield name, tensors.get_tensor(name)


def _is_scaled(module: str, stored: dict[str, Any]) -> bool:
    return any(f"{module}.{part}" in stored for part in ("weight_scale", "weight_scale_inv"))


def _weight(scheme: Scheme, module: str, stored: dict[str, Any], make: Callable[[Scheme, Parts], Made]) -> Made:
    names = {part: f"{module}.{part}" for part in (*_PARTS, "weight") if f"{module}.{part}" in stored}
    parts = {part: stored[name].get_tensor(name) for part, name in names.items()}
    try:
        return make(scheme, parts)
    except KeyError as error:
        raise UnsupportedModel(f"{module} has no {error.args[0]}, which {scheme.name} weights need") from error
    except ValueError as error:
        raise UnsupportedModel(f"{module} does not fit its {scheme.name} configuration: {error}") from error
