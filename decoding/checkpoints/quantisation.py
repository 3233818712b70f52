"""Quantised checkpoints: their schemes, and matrices of few bits.

In 4 bits, groups of 32 along the input share one fp16 scale, so a weight takes 4.5 bits. The codes are symmetric, as in GGUF's
Q4_0, but of several scales each group takes the one with the least squared error, so its extreme need not be represented
exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from decoding.checkpoints.arrays import Array, Floats
from decoding.checkpoints.model_config import read_json
from decoding.errors import UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor


Layout = Literal["scaled", "packed", "awq", "gptq"]


Block = tuple[int | None, int | None]  # rows and columns that share a scale; None: all of them


Raw = Mapping[str, Any]


_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the quantised weights of a checkpoint are stored, see `layouts`."""

    name: str  # for people
    layout: Layout
    dtype: str  # torch's name of the type that the model was published to compute in
    bits: int = 8
    block: Block = (None, None)
    zero_offset: int = 0  # added to stored zero points

    @property
    def packed_bytes(self) -> float:
        """Memory of a number that stays packed, with its part of a group's scale (of two bytes, in FP8 of four) and zero point;
        those of whole rows are left out.
        """
        group = self.block[1]
        return max(4, self.bits) / 8 + ((4 if self.layout == "scaled" else 3) / group if group else 0)


def scheme_of(path: Path) -> Scheme | None:
    """Of a checkpoint folder; None where its weights are plain. Raises UnsupportedModel, ModelUnavailable."""
    file = path / "config.json"
    config = read_json(file) if file.exists() else {}
    raw = config.get("quantization_config") or config.get("compression_config")
    if not raw:
        return None
    named, method = config.get("dtype") or config.get("torch_dtype"), raw.get("quant_method")
    dtype = named if named in _DTYPES else "bfloat16"
    if method not in _METHODS:
        raise _unknown(f"quant_method {method!r}", f"one of {', '.join(_METHODS)}")
    read, keys = _METHODS[method]
    if unknown := sorted(set(raw) - keys - {"quant_method"}):
        raise UnsupportedModel(f"quantization_config has {unknown[0]!r}, which is not known here for {method}")
    try:
        return read(raw, dtype)
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedModel(f"quantization_config for {method} is incomplete or damaged: {error!r}") from error


def _unknown(found: str, known: str) -> UnsupportedModel:
    return UnsupportedModel(f"quantization_config has {found}, which is not supported; supported: {known}")


def _only(raw: Raw, known: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse other values than these; the first is what a missing one means."""
    for key, values in known.items():
        if (found := raw.get(key, values[0])) not in values:
            raise _unknown(f"{key} {found!r}", " or ".join(map(repr, values)))


def _fp8(raw: Raw, dtype: str) -> Scheme:
    _only(raw, {"fmt": ("e4m3", "float8_e4m3fn"), "activation_scheme": ("dynamic", "static")})
    rows, columns = raw.get("weight_block_size") or (None, None)
    return Scheme("FP8", "scaled", dtype, block=(rows, columns))


def _awq(raw: Raw, dtype: str) -> Scheme:
    _only(raw, {"version": ("gemm", "GEMM"), "zero_point": (True,), "bits": (4,)})
    return Scheme("AWQ", "awq", dtype, 4, (1, _group(raw["group_size"])))


def _gptq(raw: Raw, dtype: str) -> Scheme:
    _only(raw, {"checkpoint_format": ("gptq", "gptq_v2"), "is_marlin_format": (False, None), "dynamic": (None, {})})
    _only({"bits": int(raw["bits"])}, {"bits": (4, 2, 8)})
    offset = 0 if raw.get("checkpoint_format") == "gptq_v2" else 1
    return Scheme("GPTQ", "gptq", dtype, int(raw["bits"]), (1, _group(raw["group_size"])), offset)


def _group(size: int) -> int | None:
    return None if size == -1 else int(size)


def _compressed(raw: Raw, dtype: str) -> Scheme:
    kept = {"dense", None}
    if (sparsity := (raw.get("sparsity_config") or {}).get("format")) not in kept or raw.get("transform_config"):
        raise _unknown("transform_config" if sparsity in kept else f"sparsity {sparsity!r}", "neither")
    groups = [group["weights"] for group in raw["config_groups"].values() if group.get("weights")]
    formats = {raw["format"], *(group.get("format") or raw["format"] for group in raw["config_groups"].values())}
    if len(formats) > 1 or any(_storage(group) != _storage(groups[0]) for group in groups):
        raise _unknown("several kinds of weights", "one for all layers")
    weights, form = groups[0], raw["format"]
    if (form, weights.get("type", "int"), weights["num_bits"]) not in _FORMATS:
        raise _unknown(
            f"format {form!r} with {weights.get('type', 'int')} weights of {weights['num_bits']} bits",
            ", ".join(f"{each} ({kind}{bits})" for each, kind, bits in sorted(_FORMATS)),
        )
    layout: Layout = "packed" if form == "pack-quantized" else "scaled"
    return Scheme(f"compressed-tensors {form}", layout, dtype, weights["num_bits"], _block(weights))


_FORMATS = {
    ("float-quantized", "float", 8),
    ("naive-quantized", "float", 8),
    ("naive-quantized", "int", 8),
    ("int-quantized", "int", 8),
    ("pack-quantized", "int", 4),
    ("pack-quantized", "int", 8),
}


def _storage(weights: Raw) -> tuple[Any, ...]:
    """What decides how weights are stored."""
    return weights.get("type", "int"), weights["num_bits"], _block(weights)


def _block(weights: Raw) -> Block:
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    match strategy:
        case "tensor":
            return None, None
        case "channel":
            return 1, None
        case "group":
            return 1, int(weights["group_size"])
        case "block":
            rows, columns = weights["block_structure"]
            return int(rows), int(columns)
    raise _unknown(f"strategy {strategy!r}", "tensor, channel, group, block")


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


_METHODS: dict[str, tuple[Callable[[Raw, str], Scheme], frozenset[str]]] = {  # with all that a configuration may say
    "fp8": (
        _fp8,
        _keys("activation_scheme fmt weight_block_size modules_to_not_convert ignored_layers scale_fmt dequantize"),
    ),
    "awq": (
        _awq,
        _keys(
            "bits group_size zero_point version backend modules_to_not_convert do_fuse fuse_max_seq_len modules_to_fuse "
            "exllama_config"
        ),
    ),
    "gptq": (
        _gptq,
        _keys(
            "bits group_size sym desc_act damp_percent static_groups true_sequential checkpoint_format is_marlin_format "
            "dynamic lm_head pack_dtype quantizer meta model_name_or_path model_file_base_name tokenizer dataset backend "
            "use_exllama disable_exllama exllama_config max_input_length use_cuda_fp16 model_seqlen batch_size pad_token_id "
            "block_name_to_quantize module_name_preceding_first_block modules_in_block_to_quantize cache_block_outputs "
            "mse act_group_aware"
        ),
    ),
    "compressed-tensors": (
        _compressed,
        _keys(
            "format config_groups ignore kv_cache_scheme quantization_status global_compression_ratio sparsity_config "
            "transform_config version"
        ),
    ),
}


GROUP = 32
_INT4, _SCALE = ".int4", ".scale"
_STEPS_TO_EXTREME = (-9.0, -8.5, -8.0, -7.5, -7.0, 7.0)  # quotient of a group's extreme and its scale


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices [out, in] as `name.int4` uint8 [out, in / 2] and `name.scale` fp16 [out, in / 32]; all other tensors in fp16.

    A matrix whose width is no multiple of 32 is one of the others.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and tensor.shape[1] % GROUP == 0:
            out[name + _INT4], out[name + _SCALE] = quantised(tensor)
        else:
            out[name] = tensor.half()
    return out


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `packed` stored, in fp32. Raises KeyError where a scale is missing."""
    import torch

    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_INT4):
            plain = name.removesuffix(_INT4)
            out[plain] = torch.from_numpy(restored(tensor.numpy(), tensors[plain + _SCALE].numpy()))
        elif not (name.endswith(_SCALE) and name.removesuffix(_SCALE) + _INT4 in tensors):
            out[name] = tensor.float()
    return out


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """4-bit codes uint8 [out, in / 2] (low nibble first) and scales fp16 [out, in / 32] of weight [out, in]."""
    import torch

    groups = weight.detach().float().reshape(len(weight), -1, GROUP)
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    best, least = torch.zeros_like(extreme), torch.full_like(extreme, float("inf"))
    for steps in _STEPS_TO_EXTREME:
        scale = (extreme / steps).half().float()
        error = (_codes(groups, scale) * scale - groups).square().sum(2, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    codes = (_codes(groups, best) + 8).to(torch.uint8).reshape(len(weight), -1)
    return codes[:, 0::2] | codes[:, 1::2] << 4, best.squeeze(2).half()


def _codes(groups: Tensor, scale: Tensor) -> Tensor:
    return (groups / scale.where(scale != 0, 1.0)).round().clamp(-8, 7)


def restored(codes: Array, scale: Array) -> Floats:
    """The weight [out, in] in fp32."""
    steps = np.stack([codes & 15, codes >> 4], 2).astype(np.float32) - 8
    weight: Floats = (steps.reshape(*scale.shape, GROUP) * scale.astype(np.float32)[..., None]).reshape(len(codes), -1)
    return weight


PARTS = ("", "_scale", "_int4", "_int4_scale")  # of a factor's name; the last two only where rows take 4 bits


def stored_rows(rows: Tensor, fine: int | None) -> dict[str, Tensor]:
    """Rows as they are stored, by the end of their name: the first `fine` in int8, the others in 4 bits; None: all in int8.

    Raises UnsupportedModel for rows that cannot be divided into groups of 4 bits.
    """
    if fine is not None and rows.shape[1] % GROUP:
        raise UnsupportedModel(f"rows of {rows.shape[1]} numbers cannot take 4 bits: keep all components in int8")
    first = rows if fine is None else rows[:fine]
    stored = dict(zip(PARTS[:2], _int8(first), strict=True))
    if fine is None:
        return stored
    return stored | dict(zip(PARTS[2:], quantised(rows[fine:].cpu().contiguous()), strict=True))


def restored_rows(stored: Mapping[str, Array], name: str) -> Floats:
    """The rows of a factor in fp32."""
    int8, scale, codes, coarse = (stored.get(name + part) for part in PARTS)
    assert int8 is not None and scale is not None, name
    rows: Floats = int8.astype(np.float32) * scale[:, None]
    return rows if codes is None or coarse is None else np.concatenate([rows, restored(codes, coarse)])


def _int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """int8 rows, rounded to nearest, and their scales; a row of zeros has scale 0."""
    import torch

    rows = rows.detach().float().cpu()
    scale = rows.abs().amax(1) / 127
    steps = rows / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    return steps.round().to(torch.int8).contiguous(), scale
