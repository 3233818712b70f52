"""Makes a running `TextDecoder` from a model's name, by composing checkpoint, target and tokenizer."""

from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from decoding.checkpoints.adapter import Adapter, merged_arrays, merged_weights
from decoding.checkpoints.cache_folder import Progress, on_stderr
from decoding.checkpoints.catalog import Choice, chosen_adapter, chosen_masks, resolve
from decoding.checkpoints.embedded import EMBEDDED_NAMES
from decoding.checkpoints.identity import TargetIdentity, target_identity
from decoding.checkpoints.mask_adapter import MaskAdapter
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.quantisation import scheme_of
from decoding.checkpoints.weight_files import base_sha256, read_low_bit, read_stored, read_weights, weight_files
from decoding.engine.method import PROMPT_ROWS
from decoding.engine.target import AnyTarget
from decoding.errors import UnsupportedModel, told_what_is_missing
from decoding.serving.model_queue import Batcher
from decoding.serving.processes import leader_here, processes_here
from decoding.serving.text_decoder import TextDecoder
from decoding.targets.own_thread import in_own_thread
from decoding.tokenizer import Tokenizer
from kernels.available import has_gpu, runs_cpu_kernels, runs_kernels

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Kind = Literal["auto", "fast", "hf"]
Dtype = Literal["fp32", "bf16", "int8", "stored"]
LARGE_BYTES = 1 << 30  # models below it are loaded without a word on memory


@told_what_is_missing()
def load_text_decoder(
    name: str = "embedded",
    *,
    dtype: str = "auto",
    device: str = "auto",
    target: Kind = "auto",
    adapter: Choice = "auto",
    any_base: bool = False,
    kv_dtype: str = "auto",
    prefix_cache_mb: int = 1024,
    keep_prompts: bool = False,
    prompt_rows: int = PROMPT_ROWS,
    progress: Progress = on_stderr,
) -> TextDecoder:
    """Fetch (once) and load a model.

    target "auto" takes `fast_target` if it knows the architecture, otherwise transformers; int8 runs in `cpu_target` alone,
    on a CPU that runs its kernels. dtype "auto": see `auto_dtype`; "int8" means 8-bit matrices and fp32 for the rest;
    "stored" means the packed matrices of a quantised checkpoint, and bf16 for the rest on a GPU, fp32 on a CPU.
    device "auto" is CUDA if available. adapter: a folder of a low-rank adapter (ours or peft's) that is merged into the
    weights; "auto" is the one that is shipped for the embedded model, and none for others. any_base: merge it even if it was
    trained on another model. kv_dtype "fp8" keeps keys and values in FP8 (on one GPU), "auto" in the type that is computed in.
    prefix_cache_mb 0 turns the prefix cache off. keep_prompts: on our own kernels, keep the keys and values of prompts on
    disk, and use those that are there. prompt_rows: see `Batcher`.
    Under torchrun (`decoding.serving.processes`), all processes compute the model together, each with a part of it.
    Raises ModelUnavailable (also where an extra is not installed), UnsupportedModel, AdapterMismatch, or ValueError for an
    unknown dtype or fewer rows than 0.
    """
    weights, where = chosen_dtype(dtype, device, name if target == "auto" else "")
    fp8_cache = _keeps_fp8(kv_dtype, where, target)
    path, cache_bytes = resolve(name, progress), prefix_cache_mb << 20
    if (told := memory_needed(path, weights, processes_here(), where, fp8_cache)) is not None:
        progress(told, 0, 0)
    merged = in_own_thread(lambda: chosen_adapter(name, path, adapter, any_base))
    masks = chosen_masks(name, merged)
    running = in_own_thread(
        lambda: _target(path, weights, where, target, merged, masks, cache_bytes, keep_prompts, fp8_cache, progress)
    )
    running.prompt_mask = merged is not None and merged.about.first_guess == "mask"
    identity, batcher = cache(partial(_identity, path, merged)), Batcher(running, prompt_rows)
    return TextDecoder(running, Tokenizer(path), name, merged, identity, batcher)


def _keeps_fp8(kv_dtype: str, device: str, target: Kind) -> bool:
    """Whether keys and values are kept in FP8."""
    if kv_dtype not in ("auto", "fp8"):
        raise ValueError(f"unknown type of keys and values {kv_dtype!r}; choose one of: auto, fp8")
    if kv_dtype == "fp8" and (target == "hf" or not runs_kernels(device) or processes_here() > 1):
        raise UnsupportedModel("keys and values in FP8 need one GPU and our own forward: leave --kv-dtype out")
    return kv_dtype == "fp8"


def memory_needed(
    path: Path, dtype: Dtype, processes: int = 1, device: str = "cpu", fp8_cache: bool = False
) -> str | None:
    """What a large model's weights and each token of a text will take in memory, in each of so many processes, and where that
    exceeds what is free; None for small models and for architectures whose sizes are not known."""
    if not _known(path, must=False):
        return None
    config, scheme, free = load_config(path), scheme_of(path), free_bytes()
    other = {"fp32": 4, "bf16": 2, "int8": 4, "stored": 4 if device == "cpu" else 2}[dtype]
    matrix = 1 if dtype == "int8" else other
    needed = config.memory_bytes(matrix, other)
    if processes > 1:
        from decoding.targets.parallel import Split  # imports torch

        split = Split(config, 0, processes)
        needed, config = split.memory_bytes(matrix, other), split.part
    if dtype == "stored" and scheme:
        needed -= round(config.layer_parameters * (other - scheme.packed_bytes))
    if needed < LARGE_BYTES:
        return None
    kind = scheme.name if dtype == "stored" and scheme else dtype
    in_bytes = config.fp8_token_bytes if fp8_cache else config.int8_token_bytes
    token = in_bytes if fp8_cache or runtime_of(dtype, device) == "kernels" else config.token_bytes(other)
    told = f"weights in {kind} take {needed / 1e9:.1f} GB, each token of a text {token / 1e3:.0f} kB"
    told += f", in each of {processes} processes" if processes > 1 else ""
    if scheme and dtype != "stored":
        told += f"; {scheme.name} weights are dequantised, and --dtype stored keeps them packed"
    return told if free is None or needed < free else f"{told}; only {free / 1e9:.1f} GB of memory are free"


def free_bytes() -> int | None:
    """Memory that processes can still take; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _target(
    path: Path,
    dtype: Dtype,
    device: str,
    kind: Kind,
    adapter: Adapter | None,
    masks: MaskAdapter | None,
    cache_bytes: int,
    keep_prompts: bool,
    fp8_cache: bool,
    progress: Progress,
) -> AnyTarget:
    if dtype == "int8" and (device != "cpu" or kind != "auto"):
        raise UnsupportedModel("int8 weights run on a processor, in our own forward: --device cpu")
    if dtype == "int8" and not runs_cpu_kernels():
        raise UnsupportedModel("int8 weights need a processor with AVX2: give --dtype fp32 or bf16")
    if dtype == "stored" and (adapter or kind == "hf"):
        raise UnsupportedModel(
            "packed weights run in our own forward and without an adapter: give --dtype bf16 or fp32"
        )
    if (leader := leader_here()) is not None:
        if kind == "hf":
            raise UnsupportedModel("transformers' own forward runs in one process; leave torchrun out")
        from decoding.serving.parts import parallel_target

        folder = adapter.files[0].parent if adapter else None
        return parallel_target(leader, path, dtype, device, folder, cache_bytes)
    if kind != "hf" and _known(path, must=kind == "fast" or dtype in ("int8", "stored")):
        if dtype == "stored":
            return _fast_target(path, read_low_bit(path), dtype, device, None, cache_bytes, fp8_cache)
        if dtype == "int8":
            return _cpu_target(path, adapter, masks, cache_bytes, keep_prompts, progress)
        weights: Iterable[tuple[str, Tensor]] = merged_weights(read_weights(path), adapter)
        return _fast_target(path, weights, dtype, device, masks, cache_bytes, fp8_cache)
    from decoding.targets.hf_target import HfTarget

    target = HfTarget.load(path, dtype=tensor_dtype(dtype), device=device, keep_prefixes=cache_bytes > 0)
    if adapter:
        weights = merged_weights(read_weights(path), adapter)
        changed = {name: tensor for name, tensor in weights if name.removesuffix(".weight") in adapter.factors}
        target.model.load_state_dict(changed, strict=False)
    return target


def _fast_target(
    path: Path,
    weights: "Iterable[tuple[str, Any]]",
    dtype: Dtype,
    device: str,
    masks: MaskAdapter | None,
    cache_bytes: int,
    fp8_cache: bool,
) -> AnyTarget:
    from decoding.targets.fast_target import FastModel, FastTarget

    if runs_kernels(device):
        from decoding.targets.cuda import CudaModel

        model = CudaModel(load_config(path), weights, tensor_dtype(dtype, device), device, masks)
        model.fp8_cache = fp8_cache
        model.prepare()
        return FastTarget(model, cache_bytes)
    return FastTarget(FastModel(load_config(path), weights, tensor_dtype(dtype), device, masks), cache_bytes)


def _cpu_target(
    path: Path,
    adapter: Adapter | None,
    masks: MaskAdapter | None,
    cache_bytes: int,
    keep_prompts: bool,
    progress: Progress,
) -> AnyTarget:
    from decoding.targets.int8.compiled import is_compiled, source_key
    from decoding.targets.int8.cpu_target import CpuModel, CpuTarget, kept_prompts
    from decoding.targets.int8.packed_model import Arrays, kept_packed, packed_key

    config = load_config(path)

    def packed() -> Arrays:
        from decoding.targets.int8.packing import packed_model

        return in_own_thread(lambda: packed_model(config, merged_arrays(read_stored(path), adapter)))

    files = (*weight_files(path), *(adapter.files if adapter else ()))
    arrays = kept_packed(files, packed)
    if not is_compiled():
        progress("compiling the forward for this processor", 0, 0)
    model = CpuModel(config, arrays, masks=masks)
    model.warm_up()
    kept = kept_prompts(model, f"{packed_key(files)} {source_key()}") if keep_prompts else None
    return CpuTarget(model, cache_bytes, kept)


def _known(path: Path, must: bool) -> bool:
    """Whether `fast_target` knows the architecture."""
    try:
        load_config(path)
    except UnsupportedModel:
        if must:
            raise
        return False
    return True


def _identity(path: Path, adapter: Adapter | None) -> TargetIdentity:
    return target_identity(base_sha256(path), adapter)


def chosen_dtype(dtype: str, device: str, model: str = "") -> tuple[Dtype, str]:
    """The weights' type and the device that these names mean on this machine. Raises ValueError for an unknown dtype."""
    where = device if device != "auto" else "cuda" if has_gpu() else "cpu"
    if dtype == "auto":
        return auto_dtype(where, model), where
    for known in get_args(Dtype):
        if dtype == known:
            return known, where
    raise ValueError(f"unknown dtype {dtype!r}; choose one of: auto, {', '.join(get_args(Dtype))}")


def tensor_dtype(dtype: Dtype, device: str = "cpu") -> "torch.dtype":
    """torch's type of this name; for "stored" the type of what is not packed."""
    import torch

    stored = torch.float32 if device == "cpu" else torch.bfloat16
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "stored": stored}[dtype]


def runtime_of(dtype: Dtype, device: str) -> str:
    """`Target.runtime` of what target "auto" takes."""
    return "kernels" if dtype == "int8" and runs_cpu_kernels() else device.partition(":")[0]


@told_what_is_missing()
def auto_dtype(device: str, model: str = "") -> Dtype:
    """bf16 on CUDA. On a CPU, int8 for the embedded model on our kernels, whose accuracy was measured; else bf16 if the
    CPU computes it natively (AVX-512 bf16, AMX), else fp32.
    """
    if device == "cpu" and model in EMBEDDED_NAMES and runs_cpu_kernels():
        return "int8"
    return "bf16" if device != "cpu" or _computes_bf16() else "fp32"


def _computes_bf16() -> bool:
    from decoding.targets.llama_model import computes_bf16

    return computes_bf16()
