"""Writes GGUF files from tiny checkpoints the way llama.cpp's converter does, with the official `gguf` package."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

from decoding.checkpoints.weight_files import read_weights

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}


def write_gguf(
    path: Path,
    checkpoint: Path,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    rope_factors: np.ndarray[Any, Any] | None = None,
    **metadata: Any,
) -> Path:
    """`checkpoint` as one GGUF file; matrices in `quantization`, vectors in float32.

    `metadata` overrides keys, with `__` for a dot; None leaves one out.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    family = config["model_type"]
    writer = gguf.GGUFWriter(path, family)
    overrides = {key.replace("__", "."): value for key, value in metadata.items()}
    for key, value in (_metadata(config, checkpoint) | overrides).items():
        if value is not None:
            _add(writer, key, value)
    names = gguf.get_tensor_name_map(_ARCHITECTURES[family], config["num_hidden_layers"])
    for name, tensor in read_weights(checkpoint):
        array = _llama_cpp_order(name, tensor.float().numpy(), config)
        kind = quantization if array.ndim > 1 else gguf.GGMLQuantizationType.F32
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(str(new_name), _quantised(array, kind), raw_dtype=kind)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _quantised(array: np.ndarray[Any, Any], kind: gguf.GGMLQuantizationType) -> np.ndarray[Any, Any]:
    return k_blocks(array) if kind == gguf.GGMLQuantizationType.Q4_K else quantize(array, kind)


def k_blocks(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of a multiple of 256 numbers in Q4_K, which the `gguf` package reads but does not write: 4 bits a number, 6 bits for
    scale and minimum of 32 numbers, half floats for those of 256 (`block_q4_K` in llama.cpp's ggml-common.h)."""
    parts = array.astype(np.float32).reshape(-1, 8, 32)
    least = -np.minimum(parts.min(axis=2), 0)
    step = (parts.max(axis=2) + least) / 15
    scale, offset = (np.maximum(each.max(axis=1), 1e-8).astype(np.float32)[:, None] / 63 for each in (step, least))
    steps, leasts = (np.rint(a / b).astype(np.uint8) for a, b in ((step, scale), (least, offset)))
    width = np.maximum(scale * steps, 1e-12)[:, :, None]
    levels = np.clip(np.rint((parts + (offset * leasts)[:, :, None]) / width), 0, 15).astype(np.uint8)
    first = (steps[:, :4] | (steps[:, 4:] >> 4 << 6), leasts[:, :4] | (leasts[:, 4:] >> 4 << 6))
    packed = np.concatenate([*first, (steps[:, 4:] & 15) | (leasts[:, 4:] & 15) << 4], axis=1)
    pairs = levels.reshape(-1, 4, 2, 32)
    quants = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    halves = np.concatenate([scale, offset], axis=1).astype(np.float16).view(np.uint8)
    return np.concatenate([halves, packed, quants], axis=1).reshape(len(array), -1)


def _llama_cpp_order(name: str, array: np.ndarray[Any, Any], config: dict[str, Any]) -> np.ndarray[Any, Any]:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py; Qwen's tensors stay as they are."""
    if config["model_type"] != "llama" or not any(part in name for part in ("q_proj", "k_proj")):
        return array
    heads = config["num_attention_heads"] if "q_proj" in name else config["num_key_value_heads"]
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def _metadata(config: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    family = config["model_type"]
    return {
        f"{family}.block_count": config["num_hidden_layers"],
        f"{family}.context_length": config["max_position_embeddings"],
        f"{family}.embedding_length": config["hidden_size"],
        f"{family}.feed_forward_length": config["intermediate_size"],
        f"{family}.attention.head_count": config["num_attention_heads"],
        f"{family}.attention.head_count_kv": config["num_key_value_heads"],
        f"{family}.attention.key_length": config["head_dim"],
        f"{family}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{family}.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": sorted(vocab, key=lambda token: vocab[token]),
        "tokenizer.ggml.token_type": [3 if number in special else 1 for number in range(len(vocab))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": json.loads((checkpoint / "tokenizer_config.json").read_text())["chat_template"],
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
