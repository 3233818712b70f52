"""Reads the tensors of a checkpoint folder, as stored, from (sharded) safetensors or pickles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from decoding.checkpoints.arrays import read_arrays
from decoding.checkpoints.identity import recorded, weights_sha256
from decoding.checkpoints.model_config import read_json
from decoding.checkpoints.quantisation import Scheme, scheme_of
from decoding.errors import ModelUnavailable, UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.gpu.low_bit import LowBit


def weight_files(path: Path) -> tuple[Path, ...]:
    """The files that hold a checkpoint's weights, safetensors preferred. Raises ModelUnavailable when one is missing."""
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        index, single = path / f"{stem}.{suffix}.index.json", path / f"{stem}.{suffix}"
        if index.exists():
            files = tuple(path / file for file in sorted(set(read_json(index).get("weight_map", {}).values())))
        elif single.exists():
            files = (single,)
        else:
            continue
        if missing := [file.name for file in files if not file.exists()]:
            raise ModelUnavailable(f"{path} lacks the weight file {missing[0]}; fetch the model again")
        return files
    raise ModelUnavailable(
        f"{path} holds no weights: neither model.safetensors nor pytorch_model.bin, whole or sharded"
    )


def check_parts(path: Path) -> None:
    """Raise UnsupportedModel for pickles, which can only be read whole, and for quantisation that is not known."""
    scheme_of(path)
    if any(file.suffix != ".safetensors" for file in weight_files(path)):
        raise UnsupportedModel(f"{path} holds pickles, which cannot be read in parts; convert it to safetensors files")


def read_parts(path: Path, part: Callable[[str, Any], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What `part` makes of each name and tensor, which it gets as something to slice: only what is sliced is read. Of quantised
    weights, one whole tensor at a time is read.

    Raises ModelUnavailable; see `check_parts`.
    """
    check_parts(path)
    return read_weights(path, part)


def read_weights(path: Path, part: Callable[[str, Any], Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a checkpoint folder, as stored, one file at a time; quantised weights are dequantised. part: see
    `read_parts`. Raises ModelUnavailable, and UnsupportedModel for quantisation that is not known.

    Pickles are read with `weights_only=True`: they cannot run code.
    """
    if (scheme := scheme_of(path)) is not None:
        with _told_if_damaged(path):
            yield from _dequantised(weight_files(path), scheme, part)
        return
    for file in weight_files(path):
        with _told_if_damaged(file):
            yield from _read_safetensors(file, part) if file.suffix == ".safetensors" else _read_pickle(file)


def read_stored(path: Path) -> Iterator[tuple[str, Any]]:
    """As `read_weights`, but numpy arrays, without torch, wherever the files allow it: plain safetensors of types that numpy
    has, or bfloat16 (`checkpoints.arrays`). Else tensors."""
    files = weight_files(path)
    if scheme_of(path) is not None or any(file.suffix != ".safetensors" for file in files):
        yield from read_weights(path)
        return
    for file in files:
        with _told_if_damaged(file):
            yield from read_arrays(file) or _read_safetensors(file, None)


def read_low_bit(path: Path) -> Iterator[tuple[str, Tensor | LowBit]]:
    """As `read_weights`, but what is quantised stays so, in the one form of `kernels.gpu.low_bit`.

    Raises UnsupportedModel, too, where nothing is quantised, or not in a way that can be kept.
    """
    from decoding.checkpoints.quantised import (
        low_bit,  # imports torch
        read_quantised,
    )

    if (scheme := scheme_of(path)) is None:
        raise UnsupportedModel(
            f"{path} is not quantised, so there is nothing to keep packed: give --dtype bf16, fp32 or auto"
        )
    with _told_if_damaged(path):
        yield from read_quantised(weight_files(path), scheme, low_bit)


@contextmanager
def _told_if_damaged(file: Path) -> Iterator[None]:
    try:
        yield
    except UnpicklingError as error:
        raise ModelUnavailable(f"{file} holds more than tensors; use a checkpoint with safetensors files") from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelUnavailable(f"{file} is damaged ({reason}); fetch the model again") from error


def _read_safetensors(file: Path, part: Callable[[str, Any], Tensor] | None) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  (no mapping: it has no __iter__)
            yield name, part(name, tensors.get_slice(name)) if part else tensors.get_tensor(name)


def _dequantised(
    files: tuple[Path, ...], scheme: Scheme, part: Callable[[str, Any], Tensor] | None
) -> Iterator[tuple[str, Tensor]]:
    from decoding.checkpoints.quantised import (
        dequantised,  # imports torch
        read_quantised,
    )

    for name, tensor in read_quantised(files, scheme, dequantised):
        yield name, part(name, tensor) if part else tensor


def _read_pickle(file: Path) -> Iterator[tuple[str, Tensor]]:
    import torch

    yield from torch.load(file, map_location="cpu", weights_only=True).items()


def base_sha256(path: Path) -> str:
    """Identity of a checkpoint's weights, by which adapters and heads name the checkpoint that they were trained on.

    It is `identity.weights_sha256`, recorded at conversion or else computed from all weights. Raises ModelUnavailable.
    """
    origin = recorded(path)
    return origin.base_sha256 if origin else weights_sha256(dict(read_stored(path)))
