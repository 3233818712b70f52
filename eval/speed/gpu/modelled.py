"""What steps of large models would take on a GPU that is not here: a model by bytes, operations and launches, no measurement.

A forward reads its weights and keys once and multiplies; it takes the longer of both, and between two of its kernels a
captured graph loses a little. Eager, it takes at least as long as the processor needs to launch its kernels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from decoding.checkpoints.model_config import ModelConfig
from eval.speed.gpu.targets import SHAPES, step_bytes

# Per layer: four products, two norms with the sums before them, gate, rotary positions with the cache's rows, attention.
LAYER_KERNELS = {"product": 4, "add_rms_norm": 2, "gated": 1, "rotate_and_store": 1, "tree_attention": 1}
SPLIT_KEYS = 128  # from so many keys on attention has a second kernel, which joins its parts
OTHER_KERNELS = 6  # embedding, first norm, selected rows, LM head, and two of the choice


@dataclass(frozen=True, slots=True)
class Published:
    """A GPU by its data sheet. gap_us, launch_us: assumed, between kernels of a graph and for each launch by the processor."""

    bytes_per_s: float
    operations_per_s: float  # bf16, dense, two per multiply-add
    gap_us: float = 1.0
    launch_us: float = 5.0


@dataclass(frozen=True, slots=True)
class Format:
    """Bytes of a number: in the layers' matrices, with its part of a scale and zero point, and in keys and values."""

    matrix: float = 2.0
    cache: float = 2.0


FORMATS = {
    "bf16": Format(),
    "fp8, blocks of 128": Format(1 + 4 / 128),
    "int4, groups of 128": Format(0.5 + 3 / 128),
    "int4, cache in fp8": Format(0.5 + 3 / 128, 1 + 4 / 128),
}
GPUS = {"H200": Published(4.8e12, 989e12), "H100": Published(3.35e12, 989e12)}


def modelled(
    gpu: str,
    models: Sequence[str],
    contexts: Sequence[int],
    nodes: Sequence[int],
    formats: Sequence[str] = ("bf16",),
) -> Iterator[dict[str, object]]:
    """A row for each model, format, context and number of draft nodes beside the plain step's token. All products are in bf16;
    what unpacking costs is not in it.
    """
    for name, form, context, more in product(models, formats, contexts, nodes):
        yield {
            "model": name,
            "weights": form,
            "context": context,
            "nodes": more,
            **_step(SHAPES[name], GPUS[gpu], FORMATS[form], context, 1 + more),
        }


def _step(config: ModelConfig, sheet: Published, form: Format, context: int, rows: int) -> dict[str, object]:
    weights, cached = step_bytes(config, 0), context * config.token_bytes(1)
    whole = weights - round((2 - form.matrix) * config.layer_parameters) + round(form.cache * cached)
    attention = 4 * rows * context * config.layers * config.heads * config.head_dim
    launches = launches_of(config, context)
    by_bytes, by_operations = (
        1e3 * whole / sheet.bytes_per_s,
        1e3 * (rows * weights + attention) / sheet.operations_per_s,
    )
    captured = max(by_bytes, by_operations) + 1e-3 * sheet.gap_us * launches
    return {
        "gb": whole / 1e9,
        "bytes_ms": by_bytes,
        "operations_ms": by_operations,
        "launches": launches,
        "captured_ms": captured,
        "eager_ms": max(captured, 1e-3 * sheet.launch_us * launches),
    }


def launches_of(config: ModelConfig, context: int) -> int:
    """Kernels of a forward whose rows and logits fit in one graph."""
    return config.layers * (sum(LAYER_KERNELS.values()) + (context > SPLIT_KEYS)) + OTHER_KERNELS
