"""Guards the reading of quantised checkpoints: FP8, AWQ, GPTQ and compressed-tensors.

The packers here follow the formats' descriptions, number by number; they share nothing with the code that reads. Bytes that
the published libraries packed are in `official_packers.safetensors`.
"""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.quantisation import scheme_of
from decoding.checkpoints.quantised import dequantised
from decoding.checkpoints.weight_files import read_parts, read_weights
from decoding.engine.loop import Request, decode
from decoding.engine.sampler import Sampler
from decoding.errors import UnsupportedModel
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from decoding.targets.fast_target import FastModel, FastTarget
from decoding.targets.int8.cpu_target import CpuTarget
from decoding.targets.parallel import Split
from kernels.available import runs_cpu_kernels
from tests.decoding.checkpoints import official_packers
from tests.decoding.models.tiny_models import Family, tiny_checkpoint

GROUP = 32
Parts = dict[str, Tensor]
Numbers = npt.NDArray[np.int64]
Packed = tuple[Parts, Tensor]  # the parts of a module, and the weight that they mean
Pack = Callable[[Tensor, np.random.Generator], Packed]

pytestmark = pytest.mark.usefixtures("one_thread")


def words(numbers: Numbers, bits: int, order: tuple[int, ...]) -> Tensor:
    """Rows of int32 words: number `order[i]` of each word's numbers takes its bits from i * bits on."""
    each = 32 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % each)))
    out = np.zeros((len(padded), padded.shape[1] // each), np.uint32)
    for row, word, place in product(range(out.shape[0]), range(out.shape[1]), range(each)):
        out[row, word] |= np.uint32(int(padded[row, word * each + order[place]]) << (bits * place))
    return torch.from_numpy(out.view(np.int32).copy())


def in_order(bits: int) -> tuple[int, ...]:
    return tuple(range(32 // bits))


def integers(weight: Tensor, bits: int, rng: np.random.Generator) -> tuple[Numbers, Numbers, npt.NDArray[np.float16]]:
    """Unsigned numbers [out, in] near the weight, zero points and scales [out, groups]; zero points reach both ends."""
    rows, columns = weight.shape
    top, groups = (1 << bits) - 1, columns // GROUP
    zeros = rng.integers(0, top + 1, (rows, groups))
    zeros[0, 0], zeros[1, 0] = 0, top
    scales = (np.abs(weight.numpy()).reshape(rows, groups, GROUP).max(2) / (top / 2)).astype(np.float16)
    numbers = np.zeros((rows, columns), np.int64)
    for row, column in product(range(rows), range(columns)):
        group = column // GROUP
        numbers[row, column] = round(float(weight[row, column]) / float(scales[row, group])) + zeros[row, group]
    return numbers.clip(0, top), zeros, scales


def meant(numbers: Numbers, zeros: Numbers, scales: npt.NDArray[np.float16], group_of: Callable[[int], int]) -> Tensor:
    out = np.zeros(numbers.shape, np.float32)
    for row, column in product(*map(range, numbers.shape)):
        group = group_of(column)
        out[row, column] = np.float32(numbers[row, column] - zeros[row, group]) * np.float32(scales[row, group])
    return torch.from_numpy(out)


def awq(weight: Tensor, rng: np.random.Generator) -> Packed:
    numbers, zeros, scales = integers(weight, 4, rng)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {"qweight": words(numbers.T, 4, order), "qzeros": words(zeros.T, 4, order)}
    parts["scales"] = torch.from_numpy(scales.T.copy())
    return parts, meant(numbers, zeros, scales, lambda column: column // GROUP)


def gptq(bits: int, version: int, is_ordered: bool) -> Pack:
    """is_ordered: inputs are quantised in another order than they lie in, so that g_idx is needed."""

    def pack(weight: Tensor, rng: np.random.Generator) -> Packed:
        numbers, zeros, scales = integers(weight, bits, rng)
        group_of = np.arange(weight.shape[1]) // GROUP
        if is_ordered:
            group_of = rng.permutation(group_of)
        stored = (zeros - 1) % (1 << bits) if version == 1 else zeros
        parts = {
            "qweight": words(numbers, bits, in_order(bits)).T.contiguous(),
            "qzeros": words(stored.T, bits, in_order(bits)),
            "scales": torch.from_numpy(scales.T.copy()),
            "g_idx": torch.from_numpy(group_of.astype(np.int32)),
        }
        return parts, meant(numbers, zeros, scales, lambda column: int(group_of[column]))

    return pack


def packed(bits: int, is_symmetric: bool) -> Pack:
    def pack(weight: Tensor, rng: np.random.Generator) -> Packed:
        numbers, zeros, scales = integers(weight, bits, rng)
        parts = {
            "weight_packed": words(numbers, bits, in_order(bits)),
            "weight_scale": torch.from_numpy(scales.copy()),
            "weight_shape": torch.tensor(weight.shape),
        }
        if is_symmetric:
            zeros = np.full_like(zeros, 1 << (bits - 1))
        else:
            parts["weight_zero_point"] = words(zeros.T, bits, in_order(bits)).T.contiguous()
        return parts, meant(numbers, zeros, scales, lambda column: column // GROUP)

    return pack


def blocks(high: int, wide: int) -> Pack:
    """FP8 in blocks of so many rows and columns."""

    def pack(weight: Tensor, rng: np.random.Generator) -> Packed:
        counts = -(-weight.shape[0] // high), -(-weight.shape[1] // wide)
        scale = torch.from_numpy(rng.uniform(1e-3, 1e-2, counts)).float()
        each = torch.zeros(weight.shape)
        for row, column in product(*map(range, weight.shape)):
            each[row, column] = scale[row // high, column // wide]
        small = (weight / each).clamp(-448, 448).to(torch.float8_e4m3fn)
        return {"weight": small, "weight_scale_inv": scale}, small.float() * each

    return pack


def rows_or_all(by_row: bool, dtype: torch.dtype) -> Pack:
    def pack(weight: Tensor, rng: np.random.Generator) -> Packed:
        top = 448.0 if dtype.is_floating_point else 127.0
        scale = (weight.abs().amax(1, keepdim=True) if by_row else weight.abs().amax().reshape(1)) / top
        scaled = weight / scale
        small = (scaled if dtype.is_floating_point else scaled.round()).to(dtype)
        return {"weight": small, "weight_scale": scale, "input_scale": torch.ones(1)}, small.float() * scale

    return pack


def compressed(form: str, kind: str, bits: int, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, **weights}, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


GPTQ = {"quant_method": "gptq", "group_size": GROUP, "desc_act": True, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [10, 24]}
FORMATS: dict[str, tuple[Pack, dict[str, Any]]] = {
    "awq": (awq, AWQ),
    "gptq-4": (gptq(4, 1, False), {**GPTQ, "bits": 4}),
    "gptq-4-ordered": (gptq(4, 1, True), {**GPTQ, "bits": 4, "checkpoint_format": "gptq"}),
    "gptq-8-v2": (gptq(8, 2, True), {**GPTQ, "bits": 8, "checkpoint_format": "gptq_v2"}),
    "packed-4": (
        packed(4, True),
        compressed("pack-quantized", "int", 4, strategy="group", group_size=GROUP, symmetric=True),
    ),
    "packed-4-zeros": (packed(4, False), compressed("pack-quantized", "int", 4, strategy="group", group_size=GROUP)),
    "packed-8": (packed(8, True), compressed("pack-quantized", "int", 8, strategy="group", group_size=GROUP)),
    "fp8-blocks": (blocks(10, 24), FP8),  # rows and columns are left over
    "fp8-blocks-of-32": (blocks(10, 32), {**FP8, "weight_block_size": [10, 32]}),
    "float-rows": (
        rows_or_all(True, torch.float8_e4m3fn),
        compressed("float-quantized", "float", 8, strategy="channel"),
    ),
    "float-tensor": (
        rows_or_all(False, torch.float8_e4m3fn),
        compressed("float-quantized", "float", 8, strategy="tensor"),
    ),
    "int-rows": (rows_or_all(True, torch.int8), compressed("int-quantized", "int", 8, strategy="channel")),
}


def plain_checkpoint(folder: Path, family: Family = "qwen2") -> Path:
    """With sizes that groups divide."""
    return tiny_checkpoint(folder, family, tie=False, seed=4, hidden_size=64, intermediate_size=96, head_dim=16)


def quantised(
    folder: Path, pack: Pack, about: dict[str, Any], family: Family = "qwen2"
) -> tuple[Path, dict[str, Tensor]]:
    """A tiny checkpoint whose layers' matrices are quantised, in two files that part a module; and what its tensors mean."""
    path = plain_checkpoint(folder, family)
    plain, rng = load_file(path / "model.safetensors"), np.random.default_rng(5)
    means, files = {}, ({}, {})  # type: ignore[var-annotated]
    for name, tensor in plain.items():
        if ".layers." in name and tensor.dim() == 2:
            parts, means[name] = pack(tensor, rng)
            for number, (part, values) in enumerate(parts.items()):
                files[number % 2][f"{name.removesuffix('.weight')}.{part}"] = values.contiguous()
        else:
            files[0][name], means[name] = tensor, tensor
    (path / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, content in zip(names, files, strict=True):
        save_file(content, path / file)
    index = {name: file for file, content in zip(names, files, strict=True) for name in content}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    configure(path, about)
    return path, means


def configure(path: Path, about: dict[str, Any]) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": about}))


def greedy(target: Any) -> list[int]:
    request = Request(tuple(range(5, 25)), load_method("plain"), 16, Sampler())
    return [token for each in decode(target, [request]) for token in each.committed]


@pytest.mark.parametrize("name", FORMATS)
def test_weights_and_text_are_those_that_the_numbers_mean(name: str, tmp_path: Path) -> None:
    path, means = quantised(tmp_path, *FORMATS[name])
    found = dict(read_weights(path))
    assert found.keys() == means.keys()
    for each, want in means.items():
        assert found[each].shape == want.shape
        torch.testing.assert_close(
            found[each], want, rtol=1e-6, atol=1e-7, msg=lambda told, each=each: f"{each}: {told}"
        )
    config = load_config(path)
    text = greedy(FastTarget.load(path))
    assert text == greedy(FastTarget(FastModel(config, means.items()))) and len(set(text)) > 3
    split = Split(config, 1, 2)
    for each, part in read_parts(path, split.cut):
        assert torch.equal(part, split.cut(each, found[each])), each


OFFICIAL = safe_open(official_packers.FILE, "pt")


@pytest.mark.parametrize("name", sorted(OFFICIAL.metadata()))
def test_what_official_libraries_packed_means_what_they_make_of_it(name: str, tmp_path: Path) -> None:
    about = json.loads(OFFICIAL.metadata()[name])
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": about, "dtype": "float16"}))
    scheme = scheme_of(tmp_path)
    assert scheme is not None
    keys = (each.rpartition(".")[::2] for each in OFFICIAL.keys())  # noqa: SIM118
    parts = {part: OFFICIAL.get_tensor(f"{name}.{part}") for of, part in keys if of == name and part != "meant"}
    meant = OFFICIAL.get_tensor(f"{name}.meant")
    torch.testing.assert_close(dequantised(scheme, parts).float(), meant, rtol=1e-3, atol=3e-4)


def test_in_bf16_and_in_int8(tmp_path: Path) -> None:
    """int8 rounds again what was dequantised."""
    path, means = quantised(tmp_path / "model", *FORMATS["gptq-4-ordered"])
    plain = plain_checkpoint(tmp_path / "plain")
    save_file(means, plain / "model.safetensors")
    half = [FastTarget.load(folder, torch.bfloat16) for folder in (path, plain)]
    assert greedy(half[0]) == greedy(half[1])
    if runs_cpu_kernels():
        small = [CpuTarget.load(folder) for folder in (path, plain)]
        assert greedy(small[0]) == greedy(small[1])


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method 'bitsandbytes'"),
        ({**AWQ, "version": "gemv"}, "version 'gemv'"),
        ({**AWQ, "hidden_dims": 3}, "has 'hidden_dims', which is not known here for awq"),
        ({**GPTQ, "bits": 3}, "bits 3"),
        ({**GPTQ, "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({**GPTQ}, "for gptq is incomplete or damaged: KeyError"),
        ({**FP8, "fmt": "e5m2"}, "fmt 'e5m2'"),
        (
            compressed("nvfp4-pack-quantized", "float", 4, strategy="group", group_size=16),
            "format 'nvfp4-pack-quantized'",
        ),
        (compressed("pack-quantized", "int", 3, strategy="channel"), "int weights of 3 bits"),
        (compressed("float-quantized", "float", 8, strategy="attn_head"), "strategy 'attn_head'"),
        ({**compressed("float-quantized", "float", 8), "transform_config": {"a": 1}}, "transform_config"),
        (
            {**compressed("float-quantized", "float", 8), "sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparse-24",
        ),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(about: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path)
    configure(path, about)
    with pytest.raises(UnsupportedModel, match=told) as caught:
        load_text_decoder(str(path), dtype="fp32", device="cpu")
    assert "\n" not in str(caught.value)


def test_missing_and_misfitting_parts_are_named(tmp_path: Path) -> None:
    path, _ = quantised(tmp_path, *FORMATS["awq"])
    file = path / "model-00002-of-00002.safetensors"
    stored = load_file(file)
    name = next(each for each in stored if each.endswith("qzeros"))
    save_file({each: tensor for each, tensor in stored.items() if each != name}, file)
    with pytest.raises(UnsupportedModel, match=r"model.layers.\S+ has no qzeros, which AWQ weights need"):
        list(read_weights(path))
    save_file({**stored, name: stored[name][:1]}, file)
    with pytest.raises(UnsupportedModel, match=r"model.layers.\S+ does not fit its AWQ configuration"):
        list(read_weights(path))
