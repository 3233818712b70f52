"""Makes `official_packers.safetensors`: one weight, packed by the libraries that publish checkpoints.

They are AutoGPTQ 0.7.1, AutoAWQ 0.2.9 and compressed-tensors 0.20.1. `*.meant` is what the same library computes from its
bytes: its layer's product with the identity, or its own dequantised weight. To make the file again:

    pip install --no-deps --target PACKERS auto-gptq==0.7.1 autoawq==0.2.9 compressed-tensors==0.20.1 loguru
    python -m tests.decoding.checkpoints.official_packers PACKERS
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

FILE = Path(__file__).with_suffix(".safetensors")
OUT, IN, GROUP = 32, 64, 32
GPTQ = {"quant_method": "gptq", "group_size": GROUP, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
Packed = tuple[dict[str, Tensor], Tensor, dict[str, Any]]  # the parts of a module, what they mean, its configuration


def ranges(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scales and zero points [OUT, groups] that cover a weight, whose groups lie one after the other."""
    groups = weight.float().view(OUT, -1, GROUP)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).half()
    return scale, (-low / scale.float()).round().clamp(1, 2**bits - 1)


def linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(IN, OUT, bias=False)
    layer.weight.data = weight.half()
    return layer


def autogptq(library: Any, weight: Tensor, bits: int, is_ordered: bool) -> Packed:
    scale, zero = ranges(weight, bits)
    group = torch.arange(IN) // GROUP
    if is_ordered:
        group = group[torch.randperm(IN)]
    spread, middle = scale.float()[:, group], zero[:, group]
    numbers = ((weight.float() / spread).round() + middle).clamp(0, 2**bits - 1)
    layer = library.QuantLinear(bits, GROUP, IN, OUT, False)
    layer.pack(linear((numbers - middle) * spread), scale.float(), zero, group.int())
    parts = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
    meant = layer(torch.eye(IN).half()).float().t()
    return parts, meant, {**GPTQ, "bits": bits, "desc_act": is_ordered}


def autoawq(library: Any, packing: Any, weight: Tensor) -> Packed:
    scale, zero = (each.t().contiguous() for each in ranges(weight, 4))
    layer = library.WQLinear_GEMM.from_linear(linear(weight), 4, GROUP, scales=scale, zeros=zero)
    parts = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}
    meant = packing.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, GROUP)
    return parts, meant.t().float(), AWQ


def compressed_tensors(weight: Tensor, bits: int, is_symmetric: bool) -> Packed:
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor as Compressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    kind = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": is_symmetric}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**kind))
    scale, zero = ranges(weight, bits)
    if is_symmetric:
        largest = weight.float().view(OUT, -1, GROUP).abs().amax(2)
        scale, zero = (largest / (2 ** (bits - 1) - 0.5)).half(), torch.full_like(zero, 2 ** (bits - 1))
    stored = {"weight": weight, "weight_scale": scale, "weight_zero_point": (zero - 2 ** (bits - 1)).to(torch.int8)}
    parts = Compressor.compress(stored, scheme)
    about = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
    groups = {"group_0": scheme.model_dump(mode="json")}
    return parts, Compressor.decompress(dict(parts), scheme)["weight"].float(), {**about, "config_groups": groups}


def module(name: str, path: Path) -> Any:
    """One file of a package, without the rest of it, which wants a GPU and older libraries."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def stand_in(name: str, **content: Any) -> None:
    made = ModuleType(name)
    made.__dict__.update(content, __path__=[])
    sys.modules[name] = made


def all_packed(packers: Path) -> dict[str, Packed]:
    """By library and kind."""
    sys.path.insert(0, str(packers))
    torch.manual_seed(0)
    weight = (torch.randn(OUT, IN) * 0.1).half()
    gptq = module("qlinear_cuda", packers / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
    for name in ("awq", "awq.modules", "awq.modules.linear", "awq.utils"):
        stand_in(name)
    stand_in("awq.utils.module", try_import=lambda name: (None, ""))
    stand_in("awq.utils.utils", get_best_device=lambda: "cpu")
    packing = module("awq.utils.packing_utils", packers / "awq/utils/packing_utils.py")
    gemm = module("awq.modules.linear.gemm", packers / "awq/modules/linear/gemm.py")
    made = {"autoawq-4": autoawq(gemm, packing, weight)}
    for bits in (4, 8):
        made[f"autogptq-{bits}"] = autogptq(gptq, weight, bits, is_ordered=False)
        made[f"autogptq-{bits}-ordered"] = autogptq(gptq, weight, bits, is_ordered=True)
        made[f"compressed-tensors-{bits}"] = compressed_tensors(weight, bits, is_symmetric=True)
        made[f"compressed-tensors-{bits}-zeros"] = compressed_tensors(weight, bits, is_symmetric=False)
    return made


if __name__ == "__main__":
    found = all_packed(Path(sys.argv[1]))
    tensors = {f"{name}.{part}": value.contiguous() for name, (parts, _, _) in found.items() for part, value in parts.items()}
    tensors |= {f"{name}.meant": meant.contiguous() for name, (_, meant, _) in found.items()}
    save_file(tensors, FILE, metadata={name: json.dumps(about) for name, (_, _, about) in found.items()})
