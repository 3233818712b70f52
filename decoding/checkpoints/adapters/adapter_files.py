"""Adapters on disk, as folders in one of two formats.

Ours, in which adapters are shipped, has `adapter.json` and `adapter.safetensors` with, per module, int8 `a` [rank, in] and `b`
[rank, out] (B transposed), and fp32 scales per row: `a_scale`, `b_scale` [rank]. A row of both is one component of the
change, so the size of one component does not reduce another's precision. It takes about one byte per parameter. With `fine`
components, only the first of them are in int8; the others take 4 bits (`int4`), as `a_int4` [rest, in / 2] and `a_int4_scale`
[rest, in / 32], and `b_int4` likewise.

peft's has `adapter_config.json` and `adapter_model.safetensors` in fp32. Our description of the adapter is beside them in
`about.json`, which peft ignores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from decoding.checkpoints.adapters.adapter import About, Adapter, Factors, StoredFactors
from decoding.checkpoints.adapters.quantised_rows import PARTS, restored_rows, stored_rows
from decoding.checkpoints.arrays import Array, Floats, floats, read_arrays
from decoding.checkpoints.model_config import read_json
from decoding.errors import ModelUnavailable, UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor

FORMAT, FORMAT_WITH_INT4 = 1, 2
_OURS, _PEFTS = "adapter.json", "adapter_config.json"
_OUR_TENSORS, _PEFT_TENSORS = "adapter.safetensors", "adapter_model.safetensors"
_ABOUT = "about.json"
_PREFIX = "base_model.model."
_UNSUPPORTED = {"use_dora": False, "bias": "none", "modules_to_save": None, "fan_in_fan_out": False}


class _StoredFactors(StoredFactors):
    """The factors of a file, read when the first is asked for: an adapter that is merged already is only named.

    Raises ModelUnavailable then, where the file has gone or is damaged.
    """

    def __init__(
        self, file: Path, modules: list[str], restored: Callable[[Mapping[str, Array], str], tuple[Floats, Floats]]
    ) -> None:
        self._file, self._modules, self._restored = file, modules, restored

    def __getitem__(self, module: str) -> Factors:
        return self._factors[module]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def arrays(self, module: str) -> tuple[Floats, Floats]:
        return self._arrays[module]

    @cached_property
    def _arrays(self) -> dict[str, tuple[Floats, Floats]]:
        with _reading(self._file):
            stored = dict(read_arrays(self._file) or ())
            return {module: self._restored(stored, module) for module in self._modules}

    @cached_property
    def _factors(self) -> dict[str, Factors]:
        import torch

        return {
            module: Factors(torch.from_numpy(a), torch.from_numpy(np.ascontiguousarray(b)))
            for module, (a, b) in self._arrays.items()
        }


def read_adapter(folder: Path) -> Adapter:
    """An adapter of either format, whose factors are read when needed. Raises ModelUnavailable or UnsupportedModel."""
    if (folder / _OURS).exists():
        return _read_ours(folder)
    if (folder / _PEFTS).exists():
        return _read_peft(folder)
    raise ModelUnavailable(f"{folder} holds no adapter: neither {_OURS} nor {_PEFTS}")


def write_adapter(adapter: Adapter, folder: Path, fine: int | None = None) -> int:
    """Write our format, which is lossy; returns its size in bytes.

    fine: how many components are in int8, while the others take 4 bits; None: all. Raises what `stored_rows` raises.
    """
    tensors: dict[str, Tensor] = {}
    for module, factors in adapter.factors.items():
        for name, rows in (("a", factors.a), ("b", factors.b.T)):
            tensors |= {f"{module}.{name}{part}": stored for part, stored in stored_rows(rows, fine).items()}
    described = {
        "format": FORMAT if fine is None else FORMAT_WITH_INT4,
        "rank": adapter.rank,
        "alpha": adapter.alpha,
        "rank_stabilised": adapter.rank_stabilised,
        **asdict(adapter.about),
    }
    _write(folder, _OUR_TENSORS, tensors, {_OURS: described})
    return sum((folder / name).stat().st_size for name in (_OURS, _OUR_TENSORS))


def _read_ours(folder: Path) -> Adapter:
    values = read_json(folder / _OURS)
    if values.get("format") not in (FORMAT, FORMAT_WITH_INT4):
        raise UnsupportedModel(
            f"{folder} is an adapter of format {values.get('format')}; this version reads {FORMAT} and {FORMAT_WITH_INT4}"
        )
    file = folder / _OUR_TENSORS
    names = _names(file)
    modules = sorted({name.rsplit(".", 1)[0] for name in names})
    parts = PARTS[: 4 if values["format"] == FORMAT_WITH_INT4 else 2]
    wanted = {f"{module}.{factor}{part}" for module in modules for factor in "ab" for part in parts}
    if missing := sorted(wanted - names):
        raise ModelUnavailable(f"{folder} is damaged: it lacks {missing[0]!r}")
    try:
        about = About(values["base"], values["base_sha256"], values["prompt_version"], values["notes"])
        sizes = int(values["rank"]), float(values["alpha"])
        stabilised = bool(values["rank_stabilised"])
    except KeyError as error:
        raise ModelUnavailable(f"{folder} is damaged: it lacks {error}") from error
    return Adapter(_StoredFactors(file, modules, _our_factors), *sizes, about, stabilised, (folder / _OURS, file))


def _our_factors(stored: Mapping[str, Array], module: str) -> tuple[Floats, Floats]:
    return restored_rows(stored, f"{module}.a"), restored_rows(stored, f"{module}.b").T


def write_peft(adapter: Adapter, folder: Path, dropout: float = 0.0) -> None:
    """Write peft's format, without loss. Raises UnsupportedModel for a change of the embedding, which it names differently."""
    if any("embed_tokens" in module for module in adapter.factors):
        raise UnsupportedModel("peft's format for linear layers cannot hold a change of the embedding; write ours")
    tensors: dict[str, Tensor] = {}
    for module, factors in adapter.factors.items():
        tensors[f"{_PREFIX}{module}.lora_A.weight"] = factors.a
        tensors[f"{_PREFIX}{module}.lora_B.weight"] = factors.b
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.about.base,
        "inference_mode": True,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": dropout,
        "target_modules": sorted({module.rsplit(".", 1)[-1] for module in adapter.factors}),
        "use_rslora": adapter.rank_stabilised,
        **_UNSUPPORTED,
    }
    _write(folder, _PEFT_TENSORS, tensors, {_ABOUT: asdict(adapter.about), _PEFTS: config})


def _read_peft(folder: Path) -> Adapter:
    config = read_json(folder / _PEFTS)
    for name, known in _UNSUPPORTED.items():
        if config.get(name) not in (known, None, False, "none", []):
            raise UnsupportedModel(f"{folder}: adapters with {name}={config[name]!r} are not supported")
    if config.get("peft_type") != "LORA" or config.get("rank_pattern") or config.get("alpha_pattern"):
        raise UnsupportedModel(
            f"{folder}: only LoRA adapters with one rank and one alpha for all modules are supported"
        )
    file = folder / _PEFT_TENSORS
    about = About(str(config.get("base_model_name_or_path") or "an unnamed model"), "unknown")
    try:
        if (folder / _ABOUT).exists():
            about = About(**read_json(folder / _ABOUT))
        factors = _StoredFactors(file, list(_peft_modules(_names(file), folder)), _peft_factors)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (KeyError, TypeError) as error:
        raise ModelUnavailable(f"{folder} is damaged: {error}") from error
    return Adapter(factors, rank, alpha, about, bool(config.get("use_rslora", False)), (folder / _PEFTS, file))


def _peft_factors(stored: Mapping[str, Array], module: str) -> tuple[Floats, Floats]:
    a, b = (floats(stored[f"{_PREFIX}{module}.lora_{part}.weight"]) for part in "AB")
    return a, b


def _peft_modules(names: set[str], folder: Path) -> Iterator[str]:
    for name in sorted(names):
        module, found, part = name.removeprefix(_PREFIX).rpartition(".lora_")
        if not found or part not in ("A.weight", "B.weight"):
            raise UnsupportedModel(f"{folder}: the tensor {name} is not one of a LoRA adapter on linear layers")
        if part == "A.weight":
            if f"{_PREFIX}{module}.lora_B.weight" not in names:
                raise ModelUnavailable(f"{folder} is damaged: {_PREFIX}{module}.lora_B.weight is missing")
            yield module


def _names(file: Path) -> set[str]:
    """Of the tensors in a file, whose data are not read."""
    with _reading(file), safe_open(file, framework="numpy") as stored:
        return set(stored.keys())


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelUnavailable(f"{file} is missing or damaged ({error}); fetch the adapter again") from error


def _write(folder: Path, file: str, tensors: Mapping[str, Tensor], documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Write each file whole or not at all, and the configuration last, because readers look for it."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / f"{file}.unfinished"
    save_file(dict(sorted(tensors.items())), staging, {"format": "pt"})
    os.replace(staging, folder / file)
    for name, content in documents.items():
        staging.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(staging, folder / name)
