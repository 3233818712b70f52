"""Makes what `decoding.targets.int8.packed_model` keeps, from a checkpoint's weights: once per model, with torch."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.targets.int8.packed_model import Arrays, head_room, padded
from decoding.targets.int8.quantize import HEAD, rotated, rotated_layers, rounded
from decoding.targets.int8.rotation import stream_rotation
from kernels.cpu.job import BLOCK, pack
from kernels.cpu.quantize import POINTS, hadamard_reference


def packed_model(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> Arrays:
    """From weights with transformers' names. Raises UnsupportedModel where they do not match the configuration.

    matrices: int8, one after the other: qkv, attention's output, gate and up, and down of each layer, then the LM
    head; scales (fp32), offsets (int32: 128 times the sum of a row) and biases (fp32; empty where there are none) of
    their outputs; rotated_embedding [vocab, padded hidden]; final_norm [hidden]; qk_norms [layers, 2, dim], empty where
    there are none. As they are stored, for draft heads: embedding [vocab, hidden] and lm_head, which is empty where it
    is the embedding.
    """
    return _packed(config, weights, _Packer.arrays)


def packed_layers(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> Arrays:
    """`packed_model` of the layers and the final norm, for a model above another one's embedding.

    Beside "embedding", which is for the caller to add, it lacks nothing that a forward without an LM head needs.
    """
    return _packed(config, weights, _Packer.layers)


def _packed(
    config: ModelConfig, weights: Iterable[tuple[str, Tensor]], arrays: "Callable[[_Packer], Arrays]"
) -> Arrays:
    try:
        return arrays(_Packer(config, dict(rotated_layers(config, weights))))
    except (KeyError, RuntimeError, ValueError) as error:
        raise UnsupportedModel(f"the checkpoint's config.json and weights do not match: {error}") from error


class _Packer:
    def __init__(self, config: ModelConfig, stored: Mapping[str, Tensor]) -> None:
        self._config, self._stored = config, stored
        self._matrices: list[npt.NDArray[np.int8]] = []
        self._scales: list[Tensor] = []
        self._offsets: list[npt.NDArray[np.int32]] = []
        self._biases: list[Tensor] = []

    def arrays(self) -> Arrays:
        """Of a whole model."""
        config, layers = self._config, self.layers()
        embedding = self._take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        head = embedding if config.tie_embeddings else self._take(HEAD, config.vocab_size, config.hidden_size)
        rotation = torch.from_numpy(stream_rotation(config.hidden_size)).float()
        rows = rotated(head * torch.from_numpy(layers["final_norm"]), rotation)
        self._add(padded_to(rows, padded(config.vocab_size), padded(config.hidden_size)), None)
        return {
            **layers,
            **self._added(),
            "rotated_embedding": padded_to(
                rotated(embedding, rotation), config.vocab_size, padded(config.hidden_size)
            ).numpy(),
            "embedding": embedding.numpy(),
            "lm_head": np.zeros((0, 0), np.float32) if config.tie_embeddings else head.numpy(),
        }

    def layers(self) -> Arrays:
        """Of the layers and the final norm."""
        for layer in range(self._config.layers):
            self._layer(f"model.layers.{layer}.")
        final_norm = self._take("model.norm.weight", self._config.hidden_size)
        return {**self._added(), "final_norm": final_norm.numpy(), "qk_norms": self._qk_norms()}

    def _added(self) -> Arrays:
        """The matrices so far."""
        has_biases = any(bias.any() for bias in self._biases)
        return {
            "matrices": np.concatenate([matrix.reshape(-1) for matrix in self._matrices]),
            "scales": torch.cat(self._scales).numpy(),
            "offsets": np.concatenate(self._offsets),
            "biases": torch.cat(self._biases).numpy() if has_biases else np.zeros(0, np.float32),
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
            torch.cat([halves_apart(q[i], true_dim), halves_apart(k[i], true_dim), whole_heads(v[i], true_dim)])
            for i in (0, 1)
        )
        self._add(padded_to(weight, len(weight), stream), bias[:, 0])
        out, bias = self._linear(f"{prefix}self_attn.o_proj", hidden, query)
        self._add(padded_to(whole_heads(out.t(), true_dim).t(), stream, config.heads * dim), bias[:, 0])
        gates, ups = (
            self._linear(f"{prefix}mlp.{name}_proj", config.intermediate_size, hidden) for name in ("gate", "up")
        )
        weight, bias = (_alternating(padded_to(gates[i], inner), padded_to(ups[i], inner)) for i in (0, 1))
        self._add(padded_to(weight, len(weight), stream), bias[:, 0])
        down, bias = self._linear(f"{prefix}mlp.down_proj", hidden, config.intermediate_size)
        down = torch.from_numpy(hadamard_reference(padded_to(down, stream, inner).numpy()))
        self._add(_points_together(down.t()).t().contiguous(), bias[:, 0])

    def _linear(self, name: str, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        """Weight, and bias as a column; zeros where there is none."""
        bias = self._take(f"{name}.bias", outputs) if f"{name}.bias" in self._stored else torch.zeros(outputs)
        return self._take(f"{name}.weight", outputs, inputs), bias[:, None]

    def _take(self, name: str, *shape: int) -> Tensor:
        tensor = self._stored[name]
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, not {list(shape)}")
        return tensor.float()

    def _add(self, weight: Tensor, bias: Tensor | None) -> None:
        """The next matrix, with its outputs padded."""
        outputs = padded(len(weight))
        steps, scale = rounded(padded_to(weight, outputs))
        self._matrices.append(pack(steps.numpy()))
        self._scales.append(scale)
        self._offsets.append(128 * steps.numpy().sum(1, dtype=np.int32))
        self._biases.append(torch.zeros(outputs) if bias is None else padded_to(bias[:, None], outputs)[:, 0])

    def _qk_norms(self) -> npt.NDArray[np.float32]:
        config = self._config
        if not config.qk_norm:
            return np.zeros(0, np.float32)
        names = [f"model.layers.{i}.self_attn.{kind}_norm.weight" for i in range(config.layers) for kind in "qk"]
        rows = [halves_apart(self._take(name, config.head_dim)[:, None], config.head_dim)[:, 0] for name in names]
        return torch.stack(rows).numpy()


def padded_to(tensor: Tensor, rows: int, columns: int | None = None) -> Tensor:
    """The tensor with zeros at the end."""
    out = tensor.new_zeros(rows, tensor.shape[1] if columns is None else columns)
    out[: tensor.shape[0], : tensor.shape[1]] = tensor
    return out.contiguous()


def whole_heads(tensor: Tensor, head_dim: int) -> Tensor:
    """[heads * head_dim, ...] with every head padded at its end."""
    split = tensor.reshape(-1, head_dim, tensor.shape[1])
    out = split.new_zeros(len(split), padded(head_dim), split.shape[2])
    out[:, :head_dim] = split
    return out.reshape(-1, tensor.shape[1])


def halves_apart(tensor: Tensor, head_dim: int) -> Tensor:
    """[heads * head_dim, ...] with each half of every head padded at its end, so that a rotation's pairs stay half a head
    apart.
    """
    half, room = head_dim // 2, padded(head_dim) // 2
    split = tensor.reshape(-1, half, tensor.shape[1])
    out = split.new_zeros(len(split), room, split.shape[2])
    out[:, :half] = split
    return out.reshape(-1, tensor.shape[1])


def _alternating(gates: Tensor, ups: Tensor) -> Tensor:
    """A block of gates, then a block of their ups, and so on."""
    both = torch.stack([_points_together(each).view(-1, BLOCK, each.shape[1]) for each in (gates, ups)], 1)
    return both.reshape(-1, gates.shape[1])


def _points_together(rows: Tensor) -> Tensor:
    """Rows in the order in which those that the Hadamard transform mixes, 64 of them, lie side by side."""
    return rows.view(POINTS, -1, rows.shape[1]).transpose(0, 1).reshape(rows.shape)
