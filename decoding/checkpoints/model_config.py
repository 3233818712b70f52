"""Reads a checkpoint's config.json, for the families that `fast_target` runs: Llama, Qwen2 and Qwen3.

It reads both the older layout (`rope_theta`, `rope_scaling`) and that of transformers 5 (`rope_parameters`).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from decoding.errors import ModelUnavailable, UnsupportedModel

Family = Literal["llama", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = get_args(Family)
HEAD = "lm_head.weight"
RopeKind = Literal["default", "linear", "llama3"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: base and long-context scaling, with the names of transformers' `rope_parameters`."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0  # linear and llama3
    low_freq_factor: float = 1.0  # this and the following: llama3
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    @classmethod
    def of(cls, sizes: Mapping[str, Any]) -> "Rope":
        """From a head's sizes (see `sizes`)."""
        return cls(sizes["rope_theta"], **(sizes.get("rope_scaling") or {}))

    def sizes(self) -> dict[str, Any]:
        """As sizes of a head: JSON values."""
        scaling = {name: value for name, value in asdict(self).items() if name != "theta"}
        return {"rope_theta": self.theta, "rope_scaling": scaling if self.kind != "default" else None}

    def frequencies(self, head_dim: int) -> npt.NDArray[np.float32]:
        """Radians per position [head_dim / 2], scaling included: in fp32, as transformers computes them."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        plain = np.float32(1.0) / (self.theta ** exponents.astype(np.float64)).astype(np.float32)
        if self.kind == "linear":
            return plain / np.float32(self.factor)
        return self._stretched(plain) if self.kind == "llama3" else plain

    def _stretched(self, plain: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Llama 3.1's scaling: long waves are stretched by `factor`, short ones kept, those between interpolated."""
        turns = self.original_max_positions * plain / (2 * math.pi)
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = np.clip(smooth, 0.0, 1.0)
        scaled: npt.NDArray[np.float32] = (1 - smooth) * plain / self.factor + smooth * plain
        return scaled


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer with RMS norms, rotary positions, grouped-query attention and a SiLU-gated MLP."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    rms_norm_eps: float
    tie_embeddings: bool  # the LM head is the embedding
    qkv_bias: bool
    output_bias: bool  # of attention's output projection
    mlp_bias: bool
    qk_norm: bool  # RMS norm over head_dim on queries and keys, before the rotation
    max_positions: int  # tokens
    sliding_windows: tuple[int | None, ...]  # per layer, in tokens; None attends to everything

    @property
    def layer_parameters(self) -> int:
        """Numbers in the matrices of all layers."""
        attention = self.hidden_size * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def step_parameters(self) -> int:
        """Numbers in the matrices that every forward reads: those of the layers, and the LM head."""
        return self.layer_parameters + self.vocab_size * self.hidden_size

    def memory_bytes(self, matrix_bytes: int, other_bytes: int) -> int:
        """Memory of the weights. matrix_bytes, other_bytes: of a number in a matrix, and in the embedding."""
        embedding = self.vocab_size * self.hidden_size * other_bytes
        shared = self.tie_embeddings and matrix_bytes == other_bytes
        return self.step_parameters * matrix_bytes + (0 if shared else embedding)

    def token_bytes(self, element_bytes: int) -> int:
        """Memory that the keys and values of one token of a text take."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes

    @property
    def fp8_token_bytes(self) -> int:
        """The same in FP8, with a scale in fp32 for each row of a head."""
        return 2 * self.layers * self.kv_heads * (self.head_dim + 4)

    @property
    def int8_token_bytes(self) -> int:
        """The same in eight bits, with three numbers of each key and its value."""
        return self.layers * self.kv_heads * (2 * self.head_dim + 12)


def load_config(path: Path) -> ModelConfig:
    """Configuration of the checkpoint folder `path`.

    Raises ModelUnavailable when config.json is missing or damaged, UnsupportedModel for another architecture.
    """
    raw = read_json(path / "config.json")
    family = _family(raw, path)
    try:
        return _parse(raw, family)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelUnavailable(f"{path / 'config.json'} is incomplete or damaged: {error!r}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelUnavailable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelUnavailable(f"{path.parent} is no model folder: it has no {path.name}") from error
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelUnavailable(f"{path} is damaged: it holds no JSON object")
    return content


def _family(raw: Mapping[str, Any], path: Path) -> Family:
    for family in FAMILIES:
        if raw.get("model_type") == family:
            return family
    kind = raw.get("model_type") or ", ".join(raw.get("architectures") or []) or "unknown"
    raise UnsupportedModel(f"{path} is a {kind} model; supported here: {', '.join(FAMILIES)}")


def _parse(raw: Mapping[str, Any], family: Family) -> ModelConfig:
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise UnsupportedModel(f"activation {activation!r} is not supported; only silu is")
    heads = int(raw["num_attention_heads"])
    layers = int(raw["num_hidden_layers"])
    attention_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        family=family,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        layers=layers,
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
        rope=read_rope(raw),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias and family != "qwen2",
        mlp_bias=bool(raw.get("mlp_bias", False)) and family == "llama",
        qk_norm=family == "qwen3",
        max_positions=int(raw.get("max_position_embeddings", 2048)),
        sliding_windows=(None,) * layers if family == "llama" else read_windows(raw, layers),
    )


def token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """Token ids of a field that may hold one, several or none."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def read_rope(raw: Mapping[str, Any]) -> Rope:
    """From a configuration with transformers' names. Raises UnsupportedModel for a kind of scaling that is not known."""
    parameters = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise UnsupportedModel("rotary positions that differ by kind of layer are not supported")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise UnsupportedModel(f"rope scaling {kind!r} is not supported; supported: {', '.join(get_args(RopeKind))}")
    if float(parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor") or 1.0)) != 1.0:
        raise UnsupportedModel("a rotary embedding over part of each head is not supported")
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", float(parameters["factor"]))
    return Rope(
        theta=theta,
        kind="llama3",
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_max_positions=int(
            parameters.get("original_max_position_embeddings") or raw["max_position_embeddings"]
        ),
    )


def read_windows(raw: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """As in transformers' Qwen: if switched on, in the layers of `layer_types` or else from `max_window_layers` on."""
    window = raw.get("sliding_window")
    if not raw.get("use_sliding_window") or window is None:
        return (None,) * layers
    kinds = raw.get("layer_types")
    if kinds is None:
        first = int(raw.get("max_window_layers", 28))
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
