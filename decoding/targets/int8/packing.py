"""Makes what `decoding.targets.int8.packed_model` keeps, from a checkpoint's weights: once per model, in numpy."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.arrays import Floats
from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.targets.int8.packed_model import Arrays, head_room, padded
from decoding.targets.int8.rounding import HEAD, rotated, rotated_layers, rounded, stream_rotation
from kernels.cpu.job import BLOCK, pack
from kernels.cpu.quantize import POINTS, hadamard_reference


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

    Beside "embedding", which is for the caller to add, it lacks nothing that a forward without an LM head needs.
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
