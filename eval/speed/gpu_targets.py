"""The GPU benchmark: whole forwards, and the run.

Times whole forwards on a GPU, with random weights of real sizes: steps relative to the floor, drafts to steps.

Runs the whole GPU benchmark.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoding.checkpoints.model_config import Family, ModelConfig, Rope
from decoding.targets.cuda import CudaModel
from decoding.targets.fast_target import FastTarget
from decoding.timing import time_forward
from eval.speed.gpu_kernels import Shape, Timer, gpu_ms, measure, measured_machine


def config_of(
    family: Family, layers: int, hidden: int, inner: int, heads: tuple[int, int, int], vocab: int, theta: float
) -> ModelConfig:
    """A model's configuration. heads: number of query heads, number of key heads, and their width."""
    return ModelConfig(
        family=family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        layers=layers,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=heads[2],
        rope=Rope(theta),
        rms_norm_eps=1e-6,
        tie_embeddings=family == "llama",
        qkv_bias=family == "qwen2",
        output_bias=False,
        mlp_bias=False,
        qk_norm=family == "qwen3",
        max_positions=8192,
        sliding_windows=(),
        bos_id=None,
        eos_ids=(),
    )


SHAPES = {
    "SmolLM2-135M": config_of("llama", 30, 576, 1536, (9, 3, 64), 49152, 1e5),
    "Qwen2.5-Coder-7B": config_of("qwen2", 28, 3584, 18944, (28, 4, 128), 152064, 1e6),
    "Qwen3-8B": config_of("qwen3", 36, 4096, 12288, (32, 8, 128), 151936, 1e6),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The contexts to measure, and the numbers of draft nodes in addition to the plain step's token."""

    contexts: Sequence[int] = (400, 4096)
    nodes: Sequence[int] = (16, 64, 128, 256)


def random_weights(config: ModelConfig, dtype: torch.dtype, device: str) -> Iterator[tuple[str, Tensor]]:
    """Random tensors for a checkpoint with this configuration, under transformers' names."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.heads * dim, config.kv_heads * dim
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if config.qk_norm:
        layer |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
    shapes = {f"model.layers.{i}.{name}.weight": shape for i in range(config.layers) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    if config.qkv_bias:
        sizes = {"q": query, "k": key, "v": key}
        shapes |= {
            f"model.layers.{i}.self_attn.{n}_proj.bias": (sizes[n],) for i in range(config.layers) for n in sizes
        }
    for name, shape in shapes.items():
        yield name, torch.randn(shape, dtype=dtype, device=device) * 0.02


def step_bytes(config: ModelConfig, context: int, element_bytes: int = 2) -> int:
    """Bytes that a step must read: the context's keys and values, and all weights but an embedding that is only looked up."""
    numbers = {name: tensor.numel() for name, tensor in random_weights(config, torch.bfloat16, "meta")}
    if not config.tie_embeddings:
        del numbers["model.embed_tokens.weight"]
    cached = 2 * config.layers * config.kv_heads * config.head_dim * context
    return element_bytes * (sum(numbers.values()) + cached)


def measure_target(
    name: str, config: ModelConfig, bytes_per_ms: float, sizes: Sizes, device: str, say: Callable[[str], None]
) -> Iterator[dict[str, object]]:
    """A row per context: the plain step in ms and relative to the floor; eager steps and drafts in multiples of a plain step.

    Times are wall time of `score`, including choices at temperature 0.
    """
    say(name)
    model = CudaModel(config, random_weights(config, torch.bfloat16, device), torch.bfloat16, device)
    target = FastTarget(model, cache_bytes=0)
    captured = time_forward(target, sizes.contexts, [0, *sizes.nodes])
    model.graphs = False
    eager = time_forward(target, sizes.contexts, [0])
    for context in sizes.contexts:
        plain = captured[context, 0]
        floor = step_bytes(config, context) / bytes_per_ms
        drafts = {f"draft_{nodes}": captured[context, nodes] / plain for nodes in sizes.nodes}
        row = {"model": name, "context": context, "plain_ms": plain, "floor_ms": floor, "of_floor": floor / plain}
        yield {**row, "eager": eager[context, 0] / plain, **drafts}


def chosen_models(names: str) -> list[str]:
    """Names of `SHAPES` from a comma-separated list, "all" or "none". Raises UnknownShape."""
    if names in ("all", "none"):
        return list(SHAPES) if names == "all" else []
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in SHAPES:
            raise UnknownShape(f"no sizes are known of {name!r}; choose from: {', '.join(SHAPES)}")
    return chosen


class UnknownShape(ValueError):
    """The sizes of a model that was named are not in the table."""


@torch.no_grad()
def run(models: Sequence[str], say: Callable[[str], None], timer: Timer = gpu_ms) -> dict[str, Any]:
    """Run all parts; returns the measurements by part."""
    torch.manual_seed(0)
    machine = measured_machine(timer)
    kernels = list(measure(Shape(), machine, timer, say))
    forwards = [
        row for name in models for row in measure_target(name, SHAPES[name], machine.bytes_per_ms, Sizes(), "cuda", say)
    ]
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_gb_per_s": machine.bytes_per_ms / 1e6,
        "bf16_tflop_per_s": machine.operations_per_ms / 1e9,
        "kernels": kernels,
        "forwards": forwards,
    }
