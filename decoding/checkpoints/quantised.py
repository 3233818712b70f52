"""Reads published quantised checkpoints as if they were plain (`decoding.checkpoints.quantised` says what is in them).

How quantised weights lie in files, and what they mean: weight = (number - zero point) * scale, with a scale for each block.

    layout    parts of a module                          numbers
    scaled    weight [out, in], weight_scale or          FP8 (e4m3) or int8, one each; `weight_scale_inv` is no inverse
              weight_scale_inv
    packed    weight_packed, weight_scale, weight_shape  int32 holds 32 / bits neighbours of a row, the lowest bits first;
                                                         unsigned, with half of the range added
    gptq      qweight, qzeros, scales, g_idx             [in, out]; int32 holds neighbours of a column; version 1 stores zero
                                                         points less one
    awq       qweight, qzeros, scales                    [in, out]; int32 holds eight neighbours of a row, in AWQ's order

Sources: the formats of compressed-tensors, AutoGPTQ and AutoAWQ, and DeepSeek-V3's notes on its FP8 weights.

Reads a quantised checkpoint's tensors as if it were plain: each module's weight by its usual name, dequantised or packed.

What the `quantization_config` in a checkpoint's config.json says of its weights, and which of it this code reads.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor

from decoding.checkpoints.model_config import read_json
from decoding.errors import UnsupportedModel
from kernels.gpu.low_bit import LowBit, packed

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


Parts = Mapping[str, Tensor]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each four bits, from the lowest


class Grouped(NamedTuple):
    """A weight [out, in] = (number - zero) * scale, with a zero point and a scale for each row and group of columns."""

    numbers: Tensor  # [out, in], unsigned integers or FP8
    zero: Tensor | None  # [out, groups], unsigned; None for FP8
    scale: Tensor  # [out, groups]
    group: Tensor  # [in], of each column


def dequantised(scheme: Scheme, parts: Parts) -> Tensor:
    """The weight [out, in] of a module in the type that the model was published to compute in.

    Raises KeyError for a missing part, ValueError for shapes that do not fit.
    """
    numbers, zero, scale, group = _grouped(scheme, parts)
    numbers = numbers.float()
    if zero is not None:
        numbers -= zero.float()[:, group]
    return (numbers * scale.float()[:, group]).to(getattr(torch, scheme.dtype)).contiguous()


def low_bit(scheme: Scheme, parts: Parts) -> LowBit:
    """The weight of a module, packed. Raises as `dequantised`, and ValueError where `kernels.gpu.low_bit` does."""
    numbers, zero, scale, group = _grouped(scheme, parts)
    if zero is None and numbers.dtype != torch.float8_e4m3fn:
        raise ValueError(f"weights of type {numbers.dtype} cannot be kept packed")
    if zero is None:
        return packed(numbers, scale, None, group, 8)
    return packed(numbers.to(torch.uint8), scale, zero.to(torch.uint8), group, scheme.bits)


def _grouped(scheme: Scheme, parts: Parts) -> Grouped:
    try:
        found = _LAYOUTS[scheme.layout](scheme, parts)
        shape = len(found.numbers), 1 + int(found.group.max())
        zero = None if found.zero is None else _spread(found.zero, shape)
        return Grouped(found.numbers, zero, _spread(found.scale, shape), found.group.expand(found.numbers.shape[1]))
    except (RuntimeError, IndexError) as error:
        raise ValueError(str(error).partition("\n")[0]) from error


def _spread(values: Tensor, shape: tuple[int, int]) -> Tensor:
    if values.numel() > 1 and values.shape != shape:
        raise ValueError(f"{list(values.shape)} zero points or scales where there should be {list(shape)}")
    return values.reshape(-1, 1).expand(shape) if values.numel() == 1 else values


def unpacked(words: Tensor, bits: int, axis: int) -> Tensor:
    """Numbers from int32 words [rows, columns] that each hold neighbours along the axis, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    numbers = (words.unsqueeze(axis + 1) >> shifts.reshape(-1, *[1] * (1 - axis))) & ((1 << bits) - 1)
    return numbers.flatten(axis, axis + 1)


def _scaled(scheme: Scheme, parts: Parts) -> Grouped:
    weight = parts["weight"]
    scale = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
    group = _groups(weight.shape[1], scheme.block[1])
    scale = _by_row(scale, scheme, len(weight))
    if weight.is_floating_point():
        return Grouped(weight, None, scale, group)
    zero = parts.get("weight_zero_point", torch.zeros(1, dtype=torch.int8))
    return Grouped(weight.short() + 128, _by_row(zero, scheme, len(weight)).short() + 128, scale, group)


def _by_row(values: Tensor, scheme: Scheme, rows: int) -> Tensor:
    """One value per block, as one per row and group of columns."""
    if values.numel() == 1:
        return values.reshape(1, 1)
    size = scheme.block[0] or rows
    return values.reshape(-(-rows // size), -1).repeat_interleave(size, 0)[:rows]


def _groups(columns: int, size: int | None) -> Tensor:
    return torch.arange(columns) // (size or columns)


def _packed(scheme: Scheme, parts: Parts) -> Grouped:
    rows, columns = parts["weight_shape"].tolist()
    half = 1 << (scheme.bits - 1)
    numbers = unpacked(parts["weight_packed"], scheme.bits, 1)[:, :columns]
    stored = parts.get("weight_zero_point", torch.zeros(1, dtype=torch.int8))
    is_packed = stored.dtype == torch.int32
    zero = unpacked(stored, scheme.bits, 0)[:rows] if is_packed else _by_row(stored, scheme, rows).short() + half
    group = parts["weight_g_idx"].long() if "weight_g_idx" in parts else _groups(columns, scheme.block[1])
    return Grouped(numbers, zero, parts["weight_scale"].reshape(rows, -1), group)


def _gptq_weights(scheme: Scheme, parts: Parts) -> Grouped:
    numbers = unpacked(parts["qweight"], scheme.bits, 0)
    zeros = (unpacked(parts["qzeros"], scheme.bits, 1) + scheme.zero_offset) & ((1 << scheme.bits) - 1)
    group = parts["g_idx"].long() if "g_idx" in parts else _groups(len(numbers), scheme.block[1])
    return Grouped(numbers.t(), zeros.t(), parts["scales"].t(), group)


def _awq_weights(scheme: Scheme, parts: Parts) -> Grouped:
    numbers, zeros = (_awq_columns(unpacked(parts[name], 4, 1)) for name in ("qweight", "qzeros"))
    return Grouped(numbers.t(), zeros.t(), parts["scales"].t(), _groups(len(numbers), scheme.block[1]))


def _awq_columns(numbers: Tensor) -> Tensor:
    """In the order of the outputs."""
    eights = numbers.view(len(numbers), -1, 8)
    ordered = torch.empty_like(eights)
    ordered[:, :, list(_AWQ_ORDER)] = eights
    return ordered.flatten(1)


_LAYOUTS: Mapping[Layout, Callable[[Scheme, Parts], Grouped]] = {
    "scaled": _scaled,
    "packed": _packed,
    "gptq": _gptq_weights,
    "awq": _awq_weights,
}


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
