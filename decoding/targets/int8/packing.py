"""Packs a model's weights: rotated, rounded to 8 bits, in the order in which kernels read them.

An orthogonal rotation of a model's weights, which removes outlier columns from its activations (QuaRot, arXiv 2404.00456).

A few large numbers in a row leave few of the 8 bits to the others. An orthogonal matrix whose entries have similar magnitudes
spreads them; here it is the discrete cosine transform's, which exists in every size. The residual stream and the heads' values
are multiplied by it once: the weights that write and read them are rotated, after the norms' weights have been folded into
them. Up to rounding, the model stays the same; its input is rotated before the first layer and rotated back after the last.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.arrays import Floats, bfloat16, floats
from decoding.checkpoints.model_config import HEAD, ModelConfig
from decoding.errors import UnsupportedModel
from decoding.targets.int8.buffers import address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.packed_model import Arrays, head_room, padded
from kernels.cpu.job import BLOCK, pack
from kernels.cpu.quantize import POINTS, hadamard_reference

_WIDEST = 192  # most columns of the stream that are rotated together: more takes longer to load and gains nothing


def cosines(size: int) -> npt.NDArray[np.float64]:
    """The orthogonal matrix [size, size] of the discrete cosine transform, in fp64."""
    column = np.arange(size, dtype=np.float64)
    matrix: npt.NDArray[np.float64] = np.cos(math.pi / size * np.outer(column + 0.5, column)) * math.sqrt(2 / size)
    matrix[:, 0] /= math.sqrt(2)
    return matrix


def stream_rotation(hidden: int) -> npt.NDArray[np.float64]:
    """The rotation of a residual stream of that width, block by block; its transpose rotates back."""
    return cosines(max(size for size in range(1, min(hidden, _WIDEST) + 1) if hidden % size == 0))


def rotated(x: Floats, rotation: Floats) -> Floats:
    """x [..., columns], every `len(rotation)` columns multiplied by `rotation`."""
    return (x.reshape(-1, len(rotation)) @ rotation).reshape(x.shape)


def padded_matrix(rotation: Floats) -> Floats:
    """[size, padded size], as kernels multiply with it."""
    matrix = np.zeros((len(rotation), padded(len(rotation))), np.float32)
    matrix[:, : len(rotation)] = rotation
    return matrix


class KernelRotation:
    """`rotated` by a kernel, for every forward: on one thread, and in an order that does not depend on the number of rows.

    numpy's BLAS would do it on threads of its own, which keep a processor busy for 100 ms after each product.
    """

    def __init__(self, rotation: Floats) -> None:
        self._size, self._matrix = len(rotation), padded_matrix(rotation)
        self._run = compiled("weighted_sums:rows_times")

    def __call__(self, x: Floats) -> Floats:
        """x [..., columns], every `len(rotation)` columns multiplied by the rotation."""
        rows = np.ascontiguousarray(x, np.float32).reshape(-1, self._size)
        out = np.empty((len(rows), self._matrix.shape[1]), np.float32)
        self._run(address(rows), len(rows), address(self._matrix), self._size, self._matrix.shape[1], address(out))
        return out[:, : self._size].reshape(x.shape)


LEVELS = 127

_NORM_BEFORE = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "input_layernorm") | dict.fromkeys(
    ("gate_proj", "up_proj"), "post_attention_layernorm"
)


def rounded(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Steps int8 [out, in], at most 127 up and down in every row, and scales fp32 [out] of values that bf16 can hold: the
    weight is steps * scale[:, None]. Steps are chosen for the scale as rounded to bf16."""
    scale = np.maximum(np.abs(weight).max(1) / np.float32(LEVELS), np.finfo(np.float32).tiny)
    scale = floats(bfloat16(scale))
    return np.rint(weight / scale[:, None]).clip(-LEVELS, LEVELS).astype(np.int8), scale


def rotated_layers(config: ModelConfig, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Floats]]:
    """Arrays or tensors with transformers' names, in fp32, those of the layers rotated; norms whose weights were folded are
    ones. Raises KeyError or ValueError where weights do not match the configuration."""
    stored = dict(weights)
    stream = stream_rotation(config.hidden_size).astype(np.float32)
    values = cosines(config.head_dim).astype(np.float32)
    for name, weight in stored.items():
        *before, module, kind = name.split(".")
        array = floats(weight)
        if before[:2] != ["model", "layers"]:
            yield name, array
            continue
        if (norm := _NORM_BEFORE.get(module)) and kind == "weight":
            array = rotated(array * floats(stored[".".join([*before[:3], norm, kind])]), stream)
        if module == "v_proj":
            array = _rows_rotated(array, values)
        elif module == "o_proj" and kind == "weight":
            array = rotated(array, values)
        if module in ("o_proj", "down_proj"):
            array = _rows_rotated(array, stream)
        yield name, np.ones_like(array) if module in _NORM_BEFORE.values() else array


def _rows_rotated(array: Floats, rotation: Floats) -> Floats:
    """A weight [out, in] or a bias [out] whose output is rotated."""
    out: Floats = (rotation.T @ array.reshape(-1, len(rotation), array[0].size)).reshape(array.shape)
    return out


def packed_model(config: ModelConfig, weights: Iterable[tuple[str, Any]]) -> Arrays:
    """From arrays or tensors with transformers' names. Raises UnsupportedModel where they do not match the configuration.

    matrices: int8, one after the other: qkv, attention's output, gate and up, and down of each layer, then the LM
    head; scales (fp32), offsets (int32: 128 times the sum of a row) and biases (fp32; empty where there are none) of
    their outputs; rotated_embedding [vocab, padded hidden]; final_norm [hidden]; qk_norms [layers, 2, dim], empty where
    there are none. As they are stored, for draft heads: embedding [vocab, hidden] and lm_head, which is empty where it
    is the embedding.
    """
    return _packed(config, weights, _Packer.arrays)


def packed_layers(config: ModelConfig, weights: Iterable[tuple[str, Any]]) -> Arrays:
    """`packed_model` of the layers and the final norm, for a model above another one's embedding.

    Besides "embedding", which is for the caller to add, it lacks nothing that a forward without an LM head needs.
    """
    return _packed(config, weights, _Packer.layers)


def _packed(config: ModelConfig, weights: Iterable[tuple[str, Any]], arrays: "Callable[[_Packer], Arrays]") -> Arrays:
    try:
        return arrays(_Packer(config, dict(rotated_layers(config, weights))))
    except (KeyError, RuntimeError, ValueError) as error:
        raise UnsupportedModel(f"the checkpoint's config.json and weights do not match: {error}") from error


class _Packer:
    def __init__(self, config: ModelConfig, stored: Mapping[str, Floats]) -> None:
        self._config, self._stored = config, stored
        self._matrices: list[npt.NDArray[np.int8]] = []
        self._scales: list[Floats] = []
        self._offsets: list[npt.NDArray[np.int32]] = []
        self._biases: list[Floats] = []

    def arrays(self) -> Arrays:
        """Of a whole model."""
        config, layers = self._config, self.layers()
        embedding = self._take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        head = embedding if config.tie_embeddings else self._take(HEAD, config.vocab_size, config.hidden_size)
        rotation = stream_rotation(config.hidden_size).astype(np.float32)
        rows = rotated(head * layers["final_norm"], rotation)
        self._add(padded_to(rows, padded(config.vocab_size), padded(config.hidden_size)), None)
        return {
            **layers,
            **self._added(),
            "rotated_embedding": padded_to(rotated(embedding, rotation), config.vocab_size, padded(config.hidden_size)),
            "embedding": embedding,
            "lm_head": np.zeros((0, 0), np.float32) if config.tie_embeddings else head,
        }

    def layers(self) -> Arrays:
        """Of the layers and the final norm."""
        for layer in range(self._config.layers):
            self._layer(f"model.layers.{layer}.")
        final_norm = self._take("model.norm.weight", self._config.hidden_size)
        return {**self._added(), "final_norm": final_norm, "qk_norms": self._qk_norms()}

    def _added(self) -> Arrays:
        """The matrices so far."""
        has_biases = any(bias.any() for bias in self._biases)
        return {
            "matrices": np.concatenate([matrix.reshape(-1) for matrix in self._matrices]),
            "scales": np.concatenate(self._scales),
            "offsets": np.concatenate(self._offsets),
            "biases": np.concatenate(self._biases) if has_biases else np.zeros(0, np.float32),
        }

    def _layer(self, prefix: str) -> None:
        config, hidden = self._config, self._config.hidden_size
        stream, inner, dim = padded(hidden), padded(config.intermediate_size), head_room(config)
        true_dim = config.head_dim
        query, key = config.heads * true_dim, config.kv_heads * true_dim
        q, k, v = (
            self._linear(f"{prefix}self_attn.{name}_proj", rows, hidden)
            for name, rows in (("q", query), ("k", key), ("v", key))
        )
        weight, bias = (
            np.concatenate([halves_apart(q[i], true_dim), halves_apart(k[i], true_dim), whole_heads(v[i], true_dim)])
            for i in (0, 1)
        )
        self._add(padded_to(weight, len(weight), stream), bias[:, 0])
        out, bias = self._linear(f"{prefix}self_attn.o_proj", hidden, query)
        self._add(padded_to(whole_heads(out.T, true_dim).T, stream, config.heads * dim), bias[:, 0])
        gates, ups = (
            self._linear(f"{prefix}mlp.{name}_proj", config.intermediate_size, hidden) for name in ("gate", "up")
        )
        weight, bias = (_alternating(padded_to(gates[i], inner), padded_to(ups[i], inner)) for i in (0, 1))
        self._add(padded_to(weight, len(weight), stream), bias[:, 0])
        down, bias = self._linear(f"{prefix}mlp.down_proj", hidden, config.intermediate_size)
        down = hadamard_reference(padded_to(down, stream, inner))
        self._add(_points_together(down.T).T, bias[:, 0])

    def _linear(self, name: str, outputs: int, inputs: int) -> tuple[Floats, Floats]:
        """Weight, and bias as a column; zeros where there is none."""
        bias = self._take(f"{name}.bias", outputs) if f"{name}.bias" in self._stored else np.zeros(outputs, np.float32)
        return self._take(f"{name}.weight", outputs, inputs), bias[:, None]

    def _take(self, name: str, *shape: int) -> Floats:
        array = self._stored[name]
        if array.shape != shape:
            raise ValueError(f"{name} has shape {list(array.shape)}, not {list(shape)}")
        return array

    def _add(self, weight: Floats, bias: Floats | None) -> None:
        """The next matrix, with its outputs padded."""
        outputs = padded(len(weight))
        steps, scale = rounded(padded_to(weight, outputs))
        self._matrices.append(pack(steps))
        self._scales.append(scale)
        self._offsets.append(128 * steps.sum(1, dtype=np.int32))
        self._biases.append(np.zeros(outputs, np.float32) if bias is None else padded_to(bias[:, None], outputs)[:, 0])

    def _qk_norms(self) -> npt.NDArray[np.float32]:
        config = self._config
        if not config.qk_norm:
            return np.zeros(0, np.float32)
        names = [f"model.layers.{i}.self_attn.{kind}_norm.weight" for i in range(config.layers) for kind in "qk"]
        rows = [halves_apart(self._take(name, config.head_dim)[:, None], config.head_dim)[:, 0] for name in names]
        return np.stack(rows)


def padded_to(array: Floats, rows: int, columns: int | None = None) -> Floats:
    """The array with zeros at the end."""
    out = np.zeros((rows, array.shape[1] if columns is None else columns), np.float32)
    out[: array.shape[0], : array.shape[1]] = array
    return out


def whole_heads(array: Floats, head_dim: int) -> Floats:
    """[heads * head_dim, ...] with every head padded at its end."""
    split = array.reshape(-1, head_dim, array.shape[1])
    out = np.zeros((len(split), padded(head_dim), split.shape[2]), np.float32)
    out[:, :head_dim] = split
    return out.reshape(-1, array.shape[1])


def halves_apart(array: Floats, head_dim: int) -> Floats:
    """[heads * head_dim, ...] with each half of every head padded at its end, so that a rotation's pairs stay half a head
    apart.
    """
    half, room = head_dim // 2, padded(head_dim) // 2
    split = array.reshape(-1, half, array.shape[1])
    out = np.zeros((len(split), room, split.shape[2]), np.float32)
    out[:, :half] = split
    return out.reshape(-1, array.shape[1])


def _alternating(gates: Floats, ups: Floats) -> Floats:
    """A block of gates, then a block of their ups, and so on."""
    both = np.stack([_points_together(each).reshape(-1, BLOCK, each.shape[1]) for each in (gates, ups)], 1)
    return both.reshape(-1, gates.shape[1])


def _points_together(rows: Floats) -> Floats:
    """Rows in the order in which those that the Hadamard transform mixes, 64 of them, lie side by side."""
    return rows.reshape(POINTS, -1, rows.shape[1]).swapaxes(0, 1).reshape(rows.shape)
