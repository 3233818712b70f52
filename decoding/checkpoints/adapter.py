"""Low-rank adapters: merged into a model's weights, and on disk, as folders in one of two formats.

An adapter adds scale * B A to some weights W [out, in], with A [rank, in] and B [out, rank] (LoRA, arXiv 2106.09685).
It is merged when weights are loaded, so decoding costs no more than without it.

Ours, in which adapters are shipped, has `adapter.json` and `adapter.safetensors` with, per module, int8 `a` [rank, in] and `b`
[rank, out] (B transposed), and fp32 scales per row: `a_scale`, `b_scale` [rank]. A row of both is one component of the
change, so the size of one component does not reduce another's precision. It takes about one byte per parameter. With `fine`
components, only the first of them are in int8; the others take 4 bits (`quantisation`), as `a_int4` [rest, in / 2] and
`a_int4_scale` [rest, in / 32], and `b_int4` likewise.

peft's has `adapter_config.json` and `adapter_model.safetensors` in fp32. Our description of the adapter is in `about.json`
there, which peft ignores.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open

from decoding.checkpoints.arrays import Array, Floats, floats, read_arrays
from decoding.checkpoints.model_config import read_json
from decoding.checkpoints.quantisation import PARTS, restored_rows, stored_rows
from decoding.errors import ModelError, ModelUnavailable, UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor


Weight = TypeVar("Weight")  # a tensor, or an array


class AdapterMismatch(ModelError):
    """An adapter does not belong to the model to which it should be applied."""


@dataclass(frozen=True, slots=True)
class About:
    """An adapter's description of itself."""

    base: str  # name of the model that it was trained on
    base_sha256: str  # of that model's weights, see `weight_files.base_sha256`
    prompt_version: int | None = None  # of the prompts that it was trained on; None if unknown
    notes: Mapping[str, Any] = field(default_factory=dict)  # recipe, data, licence: JSON values

    @property
    def first_guess(self) -> str:
        """The first guess on which Jacobi training trained it, "prompt" or "mask"; "prompt" if it did not."""
        jacobi = self.notes.get("jacobi")
        return str(jacobi.get("first_guess", "prompt")) if isinstance(jacobi, Mapping) else "prompt"


@dataclass(frozen=True, slots=True)
class Factors:
    """The change of one weight, without the adapter's scale."""

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]


class StoredFactors(Mapping[str, Factors]):
    """Factors that lie in a file, which may be read without torch."""

    @abstractmethod
    def arrays(self, module: str) -> tuple[Floats, Floats]:
        """a and b of a module."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Factors by module, with transformers' names (`model.layers.0.self_attn.q_proj`)."""

    factors: Mapping[str, Factors]
    rank: int
    alpha: float
    about: About
    rank_stabilised: bool = False  # rsLoRA, arXiv 2312.03732
    files: tuple[Path, ...] = ()  # from which it was read

    @property
    def scale(self) -> float:
        return self.alpha / (sqrt(self.rank) if self.rank_stabilised else self.rank)

    def difference(self, module: str) -> Tensor:
        """scale * B A [out, in], fp32."""
        factors = self.factors[module]
        return self.scale * (factors.b.float() @ factors.a.float())

    def arrays(self, module: str) -> tuple[Floats, Floats]:
        """a and b of a module, without torch where they lie in a file."""
        if isinstance(self.factors, StoredFactors):
            return self.factors.arrays(module)
        return floats(self.factors[module].a), floats(self.factors[module].b)


def check_base(adapter: Adapter, base_sha256: str, force: bool = False) -> None:
    """Refuse a model that the adapter was not trained on, unless forced. Raises AdapterMismatch."""
    if not force and adapter.about.base_sha256 != base_sha256:
        raise AdapterMismatch(
            f"the adapter was trained on {adapter.about.base} ({adapter.about.base_sha256[:12]}), and this model is another "
            f"({base_sha256[:12]}): choose that model, or leave the adapter out"
        )


def merged_weights(weights: Iterable[tuple[str, Tensor]], adapter: Adapter | None) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors with the adapter's changes added in fp32; changed tensors come as fp32, the others as they are.

    Without an adapter, `weights` are unchanged. Raises AdapterMismatch if a tensor is missing or has another shape.
    """

    def added(module: str, tensor: Tensor) -> Tensor:
        assert adapter is not None
        difference = adapter.difference(module)
        _check_shapes(module, tensor.shape, difference.shape)
        return tensor.float() + difference.to(tensor.device)

    return _merged(weights, adapter, added)


def merged_arrays(weights: Iterable[tuple[str, Any]], adapter: Adapter | None) -> Iterator[tuple[str, Any]]:
    """`merged_weights` without torch, for arrays and tensors; changed ones come as arrays."""

    def added(module: str, weight: Any) -> Floats:
        assert adapter is not None
        a, b = adapter.arrays(module)
        _check_shapes(module, weight.shape, (len(b), a.shape[1]))
        return floats(weight) + np.float32(adapter.scale) * (b @ a)

    return _merged(weights, adapter, added)


def _merged(
    weights: Iterable[tuple[str, Weight]], adapter: Adapter | None, added: Callable[[str, Weight], Weight]
) -> Iterator[tuple[str, Weight]]:
    changed = set(adapter.factors) if adapter else set()
    for name, weight in weights:
        module = name.removesuffix(".weight")
        if module in changed:
            changed.remove(module)
            yield name, added(module, weight)
        else:
            yield name, weight
    if changed:
        raise AdapterMismatch(f"the adapter changes {min(changed)}, which the model does not have")


def _check_shapes(module: str, models: Sequence[int], adapters: Sequence[int]) -> None:
    if tuple(models) != tuple(adapters):
        raise AdapterMismatch(f"the adapter changes {module} of shape {list(adapters)}; the model's has {list(models)}")


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


def write_peft(adapter: Adapter, folder: Path) -> None:
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
        "lora_dropout": 0.0,
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
