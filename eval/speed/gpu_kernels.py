"""What a GPU gives: `sqlagent bench gpu`, the first command to run on one.

Compares every kernel with its plain-torch reference and with the hardware's limit. The floor of a kernel is the larger of its
bytes divided by the measured bandwidth and its operations divided by the measured rate. Times are medians on the GPU's own
clock, with the L2 cache flushed before every call.

Times whole forwards with random weights of real sizes, steps relative to the floor and drafts to steps, and the drafts of heads
of published sizes. Random heads guess nothing right; what their drafts take does not depend on that.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import Family, ModelConfig, Rope
from decoding.engine.loop import Request, decode
from decoding.engine.rounds import Round
from decoding.heads.head import HeadConfig, new_head
from decoding.heads.kinds import spread_taps
from decoding.methods.registry import load_method, method_options
from decoding.targets.cuda import CudaModel
from decoding.targets.fast_target import FastTarget
from decoding.timing import time_forward
from kernels.gpu import choice, compaction, domino, low_bit_product, norm, tree_attention
from kernels.gpu import norm as adapted_norm
from kernels.gpu import norm as gate
from kernels.gpu import tree_attention as rope
from kernels.gpu.low_bit import low_bit_reference, packed
from kernels.gpu.ragged import Ragged, SequenceRows

Run = Callable[[], object]
Timer = Callable[[Run], float]  # milliseconds


class NoGpu(RuntimeError):
    """The benchmark needs a GPU that can run them, and there is none."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes, and those of the work to measure."""

    heads: int = 28  # these five as in Qwen2.5-Coder-7B
    kv_heads: int = 4
    head_dim: int = 128
    intermediate: int = 18944
    vocab: int = 152064
    gru: int = 1024  # these two as in the published heads of Domino
    rank: int = 256
    context: int = 2048
    nodes: int = 64
    accepted: int = 6
    guesses: int = 16
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"

    @property
    def hidden(self) -> int:
        return self.heads * self.head_dim

    def random(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, device=self.device).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel's work, alternatives that do the same, and the bytes and operations that it needs at least."""

    kernel: str
    run: Run
    others: dict[str, Run]
    size_bytes: int
    operations: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured bytes and operations (two per multiply-add) per millisecond."""

    bytes_per_ms: float
    operations_per_ms: float

    def floor_ms(self, case: Case) -> float:
        return max(case.size_bytes / self.bytes_per_ms, case.operations / self.operations_per_ms)


def require_gpu() -> None:
    """Raise NoGpu unless there is a GPU that can run the kernels."""
    if not torch.cuda.is_available():
        raise NoGpu(
            "bench gpu needs a CUDA GPU, and torch sees none here; "
            "the kernels' tests run anywhere, in Triton's interpreter: pytest tests/kernels"
        )


def gpu_ms(run: Run) -> float:
    """Median milliseconds of a call on the GPU."""
    from triton.testing import do_bench

    return float(do_bench(run, return_mode="median"))


def measured_machine(timer: Timer, device: str = "cuda", copied_bytes: int = 1 << 31, side: int = 8192) -> Machine:
    """Measure the bandwidth of a copy (bytes read and written), and the rate of a bf16 product of random square matrices."""
    source = torch.zeros(copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_ms = timer(lambda: target.copy_(source))
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    return Machine(2 * copied_bytes / copy_ms, 2 * side**3 / timer(lambda: a @ b))


def launch_us(device: str = "cuda", count: int = 1000) -> float:
    """Microseconds that the host takes to launch a small operator."""
    number = torch.zeros(1, device=device)
    for repeats in (count, count):  # the first warms up
        _synchronise(device)
        start = perf_counter()
        for _ in range(repeats):
            number.add_(1)
        _synchronise(device)
    return 1e6 * (perf_counter() - start) / count


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(shape: Shape, machine: Machine, timer: Timer, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """A row per kernel and alternative: the kernel's time, the floor, and how many times as long the alternative takes."""
    for build in CASES:
        case = build(shape)
        say(case.kernel)
        took, floor = timer(case.run), machine.floor_ms(case)
        for name, run in case.others.items():
            yield {
                "kernel": case.kernel,
                "us": 1e3 * took,
                "floor_us": 1e3 * floor,
                "of_floor": floor / took,
                "against": name,
                "times_as_long": timer(run) / took,
            }


def _drafted(shape: Shape) -> Ragged:
    """One sequence of `context` tokens with a random tree of `nodes` nodes."""
    seen = torch.zeros(shape.nodes, shape.nodes, dtype=torch.bool)
    for node in range(shape.nodes):
        seen[node] = seen[int(torch.randint(node, ()))] if node else False
        seen[node, node] = True
    table = shape.random(2 * shape.kv_heads, shape.context + shape.nodes, shape.head_dim)
    positions = [shape.context + int(row.sum()) - 1 for row in seen]
    return Ragged.of([SequenceRows(table, shape.context, [0] * shape.nodes, positions, seen)])


def _tree_attention(shape: Shape) -> Case:
    ragged = _drafted(shape)
    query, table = shape.random(shape.nodes, shape.heads, shape.head_dim), ragged.parts[0].table
    dense = functional.pad(ragged.seen.bool(), (shape.context, 0), value=True)
    heads_first, (keys, values) = query.transpose(0, 1)[None], table.view(2, 1, shape.kv_heads, -1, shape.head_dim)
    others: dict[str, Run] = {
        "SDPA, dense mask": lambda: functional.scaled_dot_product_attention(
            heads_first, keys, values, dense, enable_gqa=True
        )
    }
    if query.is_cuda:
        others["flex attention"] = _flex(heads_first, keys, values, dense)
    operations = 4 * shape.nodes * shape.heads * shape.head_dim * (shape.context + shape.nodes)
    run = _bound(tree_attention.tree_attention, query, ragged, 0, shape.kv_heads)
    return Case("tree_attention", run, others, 2 * query.nbytes + table.nbytes, operations)


def _flex(query: Tensor, keys: Tensor, values: Tensor, dense: Tensor) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)
    rows, keys_seen = dense.shape
    mask = create_block_mask(lambda batch, head, row, key: dense[row, key], None, None, rows, keys_seen, device="cuda")
    return lambda: compiled(query, keys, values, block_mask=mask, enable_gqa=True)


def _compaction(shape: Shape) -> Case:
    table = shape.random(2 * shape.kv_heads * 28, shape.context + shape.nodes, shape.head_dim)
    moves = [compaction.Move(table, shape.context, [2 * row + 1 for row in range(shape.accepted)])]
    return Case(
        "compaction",
        lambda: compaction.compact(moves),
        {"reference": lambda: compaction.compact_reference(moves)},
        2 * table[:, : shape.accepted].nbytes,
    )


def _norm(shape: Shape) -> Case:
    x, delta, weight = (shape.random(*size) for size in ((shape.nodes, shape.hidden),) * 2 + ((shape.hidden,),))
    return _against_reference(
        "norm", norm.add_rms_norm, norm.add_rms_norm_reference, 4 * x.nbytes, x, delta, weight, 1e-6
    )


def _adapted_norm(shape: Shape) -> Case:
    """Of masks in all rows but the root's, with factors of rank 64."""
    x, normed = (shape.random(shape.nodes, shape.hidden) for _ in range(2))
    down, up, weight = (shape.random(*size) for size in ((64, shape.hidden), (64, shape.hidden), (shape.hidden,)))
    masked = torch.arange(shape.nodes, device=shape.device) > 0
    kernels = adapted_norm.adapt_and_norm, adapted_norm.adapt_and_norm_reference
    size_bytes = 4 * x.nbytes + 2 * down.nbytes
    return _against_reference("adapted_norm", *kernels, size_bytes, x, normed, masked, down, up, weight, 1e-6)


def _gate(shape: Shape) -> Case:
    gate_up = shape.random(shape.nodes, 2 * shape.intermediate)
    return _against_reference("gate", gate.gated, gate.gated_reference, gate_up.nbytes * 3 // 2, gate_up)


def _rope(shape: Shape) -> Case:
    ragged = _drafted(shape)
    qkv = shape.random(shape.nodes, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    weights = shape.random(shape.heads + shape.kv_heads, shape.head_dim)
    turn = shape.random(shape.context + shape.nodes, shape.head_dim)
    arguments = qkv, weights, turn, turn, ragged, 0, shape.kv_heads, 1e-6
    return _against_reference(
        "rope", rope.rotate_and_store, rope.rotate_and_store_reference, 2 * qkv.nbytes, *arguments
    )


def _low_bit_product(shape: Shape) -> Case:
    """The gates and ups in 4 bits, with a scale and a zero point for each 128 columns."""
    outputs, columns = 2 * shape.intermediate, shape.hidden
    group = torch.arange(columns) // min(128, columns)
    numbers, zero = (torch.randint(16, (outputs, size), dtype=torch.uint8) for size in (columns, int(group[-1]) + 1))
    weight = packed(numbers, torch.rand(zero.shape).half(), zero, group, 4).to(torch.device(shape.device))
    x, plain = shape.random(shape.nodes, columns), shape.random(outputs, columns)
    size_bytes = weight.nbytes + x.nbytes + shape.nodes * outputs * x.element_size()
    others = {"reference": _bound(low_bit_reference, x, weight), "plain weight": _bound(functional.linear, x, plain)}
    operations = 2 * shape.nodes * outputs * columns
    return Case("low_bit_product", _bound(low_bit_product.low_bit_product, x, weight), others, size_bytes, operations)


def _choice(shape: Shape) -> Case:
    logits = torch.randn(shape.nodes, shape.vocab, device=shape.device)
    heat = torch.full((shape.nodes,), 0.7, device=shape.device)
    key = torch.arange(shape.nodes, device=shape.device)
    arguments = logits, heat, key, key
    return _against_reference("choice", choice.choose, choice.choose_reference, logits.nbytes, *arguments)


def _domino(shape: Shape) -> Case:
    weights = domino.Correction(
        shape.random(shape.vocab, 3 * shape.gru),
        shape.random(shape.rank + 3 * shape.gru, shape.gru),
        shape.random(shape.vocab, shape.rank),
    )
    base = torch.randn(shape.guesses, shape.vocab, device=shape.device)
    ids = torch.arange(shape.vocab, device=shape.device)
    arguments = base, ids, shape.random(shape.guesses, shape.rank), shape.random(shape.gru), weights
    read = base.nbytes + (shape.guesses - 1) * weights.outputs.nbytes + shape.guesses * weights.recurrent.nbytes
    case = _against_reference("domino", domino.correct_chain, domino.correct_chain_reference, read, *arguments)
    from kernels.gpu.ragged import Graph

    return Case(case.kernel, Graph(case.run, base.device), {**case.others, "without a graph": case.run}, read)


def _bound(function: Callable[..., object], *arguments: object) -> Run:
    return lambda: function(*arguments)


def _against_reference(
    name: str, kernel: Callable[..., object], reference: Callable[..., object], size_bytes: int, *arguments: object
) -> Case:
    return Case(name, _bound(kernel, *arguments), {"reference": _bound(reference, *arguments)}, size_bytes)


CASES: Sequence[Callable[[Shape], Case]] = (
    _tree_attention,
    _compaction,
    _norm,
    _adapted_norm,
    _gate,
    _low_bit_product,
    _rope,
    _choice,
    _domino,
)


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


def step_bytes(config: ModelConfig, context: int) -> int:
    """Bytes that a step must read: the context's keys and values, and all weights but an embedding that is only looked up."""
    numbers = {name: tensor.numel() for name, tensor in random_weights(config, torch.bfloat16, "meta")}
    if not config.tie_embeddings:
        del numbers["model.embed_tokens.weight"]
    cached = 2 * config.layers * config.kv_heads * config.head_dim * context
    return 2 * (sum(numbers.values()) + cached)


def measure_target(
    name: str, config: ModelConfig, bytes_per_ms: float, sizes: Sizes, device: str, say: Callable[[str], None]
) -> Iterator[dict[str, object]]:
    """A row per context: the plain step in ms and relative to the floor; eager steps, drafts and a further row (`a_row`) in
    multiples of a plain step. Then a row per head: its draft, in ms and in plain steps.

    Times of forwards are wall time of `score`, including choices at temperature 0.
    """
    say(name)
    model = CudaModel(config, random_weights(config, torch.bfloat16, device), torch.bfloat16, device)
    target = FastTarget(model, cache_bytes=0)
    captured = time_forward(target, sizes.contexts, [0, *sizes.nodes])
    model.graphs = False
    eager = time_forward(target, sizes.contexts, [0])
    model.graphs = True
    for context in sizes.contexts:
        plain = captured[context, 0]
        floor = step_bytes(config, context) / bytes_per_ms
        drafts = {f"draft_{nodes}": captured[context, nodes] / plain for nodes in sizes.nodes}
        row = {"model": name, "context": context, "plain_ms": plain, "floor_ms": floor, "of_floor": floor / plain}
        price = (captured[context, max(sizes.nodes)] / plain - 1) / max(sizes.nodes)
        yield {**row, "eager": eager[context, 0] / plain, **drafts, "a_row": price}
    first = sizes.contexts[0]
    yield from measure_heads(name, target, config, captured[first, 0], first, say)


_HEAD_ROUNDS, _HEAD_SETTLING = 24, 8  # the first capture graphs


def head_configs(config: ModelConfig) -> dict[str, HeadConfig]:
    """Heads by method, of the sizes that are published for such models."""
    layers, hidden, vocab = config.layers, config.hidden_size, config.vocab_size
    layer: dict[str, Any] = {"heads": config.heads, "kv_heads": config.kv_heads, "head_dim": config.head_dim}
    layer |= {"intermediate": config.intermediate_size, "rope_theta": config.rope.theta}
    block = {**layer, "layers": min(5, layers), "block_size": 16, "mask_token": vocab - 1}
    domino = block | {"gru": min(1024, hidden), "rank": min(256, hidden), "own_output": True}
    three, five, last = spread_taps(layers, 3), spread_taps(layers, 5), (layers,)
    sizes: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
        "medusa": ("medusa", last, {"heads": 3, "own_lm_head": True}),
        "eagle3": ("eagle3", three, layer | {"own_lm_head": True}),
        "falcon": ("falcon", last, layer | {"lstm": hidden, "memory": 1}),
        "dflash": ("dflash", five, block),
        "ddtree": ("dflash", five, block),
        "jetspec": ("jetspec", five, block | {"causal": True}),
        "domino": ("domino", five, domino),
        "path_tree": ("path_tree", five, domino | {"causal": True, "carry": True}),
    }
    return {name: HeadConfig(kind, hidden, vocab, taps, given) for name, (kind, taps, given) in sizes.items()}


def measure_heads(
    name: str, target: FastTarget, config: ModelConfig, plain_ms: float, context: int, say: Callable[[str], None]
) -> Iterator[dict[str, object]]:
    """A row for each method with a head: medians of a round after a prompt of `context` random tokens."""
    prompt = tuple(torch.randint(config.vocab_size, (context,)).tolist())
    for method, sizes in head_configs(config).items():
        say(f"{name}: {method}")
        with torch.device(target.model.device):
            head = new_head(sizes).eval().requires_grad_(False)
        rounds: list[Round] = []
        whole = {name: 0.0 for name in ("least",) if name in method_options(method)}  # random heads are sure of nothing
        drafter = load_method(method, head=head, **whole)
        for each in decode(target, [Request(prompt, drafter, 4 * _HEAD_ROUNDS)]):
            rounds.append(each)
            if len(rounds) == _HEAD_ROUNDS:
                break
        del head, drafter
        gc.collect()  # a head and its graphs refer to each other
        steady = rounds[_HEAD_SETTLING:]
        draft_ms = median(each.draft_ms for each in steady)
        yield {
            "model": name,
            "method": method,
            "nodes": median(len(each.draft_tokens) for each in steady),
            "draft_ms": draft_ms,
            "draft_steps": draft_ms / plain_ms,
            "forward_ms": median(each.target_ms for each in steady),
            "verify_ms": median(each.verify_ms for each in steady),
        }


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
    rows = [
        row for name in models for row in measure_target(name, SHAPES[name], machine.bytes_per_ms, Sizes(), "cuda", say)
    ]
    gpu = torch.cuda.get_device_properties(0)
    return {
        "gpu": gpu.name,
        "memory_gb": gpu.total_memory / 1e9,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "copy_gb_per_s": machine.bytes_per_ms / 1e6,
        "bf16_tflop_per_s": machine.operations_per_ms / 1e9,
        "launch_us": launch_us(),
        "kernels": kernels,
        "forwards": [row for row in rows if "plain_ms" in row],
        "heads": [row for row in rows if "method" in row],
    }
