"""Converts a GGUF file to an ordinary folder in hub layout: dequantised weights, config.json, tokenizer, chat template.

Only this module knows llama.cpp's names and its order of rotary dimensions. Weights become bfloat16, as checkpoints are
published; a file that has only float32 tensors keeps float32.

The tokenizer becomes tokenizer.json and tokenizer_config.json. llama.cpp stores vocabulary, merges and the *name* of a
pre-tokenizer; what that name means is code on both sides. So names that are not listed here are refused, because a guess would
tokenise text almost right.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from decoding.checkpoints.arrays import Array, Floats, bfloat16, write_arrays
from decoding.checkpoints.cache_folder import Progress, whole_folder
from decoding.checkpoints.identity import record, weights_sha256
from decoding.checkpoints.model_config import FAMILIES
from decoding.errors import ModelUnavailable, UnsupportedModel

Field = Callable[..., Any]  # (key, default) -> value; KeyError when absent without default

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # llama.cpp's token types that are not plain text
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@dataclass(frozen=True, slots=True)
class _Style:
    """How byte-level BPE splits text before merging."""

    split: Any  # a pre-tokenizer, or None: GPT-2's own regex
    normalizer: Any = None
    ignore_merges: bool = False  # whether a word that is a token becomes that token directly


def _regex(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


_STYLES: dict[str, Callable[[], _Style]] = {
    "default": lambda: _Style(None),
    "gpt-2": lambda: _Style(None),
    "smollm": lambda: _Style(pre_tokenizers.Digits(individual_digits=True)),
    "qwen2": lambda: _Style(_regex(_QWEN), normalizers.NFC()),
    "llama-bpe": lambda: _Style(_regex(_LLAMA3), ignore_merges=True),
}


def write_tokenizer(field: Field, folder: Path) -> None:
    """Write both files into `folder`. Raises UnsupportedModel for a tokenizer that cannot be carried over exactly."""
    build_tokenizer(field).save(str(folder / "tokenizer.json"))
    content = json.dumps(_settings(field), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(content + "\n", encoding="utf-8")


def build_tokenizer(field: Field) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes; `field` reads the metadata."""
    kind = field("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(field)
    elif kind == "llama":
        tokenizer = _sentencepiece(field)
    else:
        raise UnsupportedModel(f"tokenizer {kind!r} in a GGUF file is not supported; take the checkpoint from the hub")
    _add_tokens(tokenizer, field)
    if field("tokenizer.ggml.add_bos_token", kind == "llama" or _pre_tokenizer(field) == "llama-bpe"):
        _prepend_bos(tokenizer, int(field("tokenizer.ggml.bos_token_id", 1)))
    return tokenizer


def _pre_tokenizer(field: Field) -> str:
    return str(field("tokenizer.ggml.pre", "default"))


def _byte_level(field: Field) -> Tokenizer:
    name = _pre_tokenizer(field)
    if name not in _STYLES:
        known = ", ".join(_STYLES)
        raise UnsupportedModel(f"pre-tokenizer {name!r} is not one of {known}; take the checkpoint from the hub")
    style = _STYLES[name]()
    merges = [tuple(merge.split(" ", 1)) for merge in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(_vocabulary(field), merges, ignore_merges=style.ignore_merges))
    use_regex = style.split is None or isinstance(style.split, pre_tokenizers.Digits)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([style.split, byte_level]) if style.split else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    if style.normalizer is not None:
        tokenizer.normalizer = style.normalizer
    return tokenizer


def _sentencepiece(field: Field) -> Tokenizer:
    vocabulary = _vocabulary(field)
    unknown = field("tokenizer.ggml.tokens")[int(field("tokenizer.ggml.unknown_token_id", 0))]
    merges = _merges_by_score(vocabulary, field("tokenizer.ggml.scores"))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(field("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _vocabulary(field: Field) -> dict[str, int]:
    return {token: i for i, token in enumerate(field("tokenizer.ggml.tokens"))}


def _merges_by_score(vocabulary: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The equivalent ranked BPE merges: SentencePiece merges the pair whose result scores best, so all splits, best first."""
    ranked = []
    for token, number in vocabulary.items():
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in splits if left in vocabulary and right in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        ranked += [(-scores[number], pair) for pair in known]
    ranked.sort(key=lambda entry: entry[0])
    return [pair for _, pair in ranked]


def _add_tokens(tokenizer: Tokenizer, field: Field) -> None:
    """Add markers such as <|im_end|>, which ordinary text never merges into."""
    typed = list(zip(field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type"), strict=True))
    special = [token for token, kind in typed if kind in (_UNKNOWN, _CONTROL)]
    plain = [token for token, kind in typed if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])


def _prepend_bos(tokenizer: Tokenizer, bos_id: int) -> None:
    bos = tokenizer.id_to_token(bos_id)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, bos_id)]
    )


def _settings(field: Field) -> dict[str, Any]:
    tokens = field("tokenizer.ggml.tokens")
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    numbers = {name: int(field(f"tokenizer.ggml.{key}_token_id", -1)) for key, name in names.items()}
    settings: dict[str, Any] = {name: tokens[number] for name, number in numbers.items() if number >= 0}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["clean_up_tokenization_spaces"] = False
    if template := field("tokenizer.chat_template", ""):
        settings["chat_template"] = template
    return settings


_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"
_SHARD_BYTES = 2 << 30


class _Reader(GGUFReader):
    """The library's reader on a plain array: slices of numpy's `memmap`, of which it makes two for every token of the
    vocabulary, take most of its time."""

    @property
    def data(self) -> Any:
        return self._data

    @data.setter
    def data(self, mapped: Any) -> None:
        self._data = np.asarray(mapped)


@dataclass(frozen=True, slots=True)
class Gguf:
    """An opened GGUF file of a supported architecture; its tensors stay on disk until read."""

    reader: GGUFReader
    family: str

    def field(self, key: str, default: Any = None) -> Any:
        """A metadata value; `{arch}` in the key is replaced by the architecture. Raises KeyError if absent without default."""
        field = self.reader.get_field(key.replace("{arch}", self.family))
        if field is not None:
            return field.contents()
        if default is None:
            raise KeyError(key)
        return default

    @property
    def tensor_names(self) -> set[str]:
        return {tensor.name for tensor in self.reader.tensors}


def open_gguf(path: Path) -> Gguf:
    """Open a file. Raises ModelUnavailable for a damaged one, UnsupportedModel for another architecture."""
    try:
        reader = _Reader(path)
        field = reader.get_field("general.architecture")
        family = field.contents() if field is not None else "unknown"
    except (ValueError, IndexError, OSError, KeyError) as error:
        raise ModelUnavailable(f"{path} is no GGUF file, or a damaged one ({error})") from error
    if family not in FAMILIES:
        raise UnsupportedModel(f"{path} is a {family} model; supported here: {', '.join(FAMILIES)}")
    return Gguf(reader, family)


def convert_gguf(path: Path, folder: Path, progress: Progress, *, name: str, gguf_sha256: str) -> None:
    """Write the checkpoint `folder` from the GGUF file `path`, whole or not at all.

    Raises ModelUnavailable (damaged, no room) or UnsupportedModel. The caller must exclude other writers.
    """
    gguf = open_gguf(path)
    try:
        config = hub_config(gguf)
        with whole_folder(folder) as staging:
            write_tokenizer(gguf.field, staging)
            weights = _read_all(gguf, progress, f"converting {path.name}")
            _save_sharded(weights, staging)
            _write_json(staging / "config.json", config)
            _write_json(staging / "generation_config.json", _generation_config(gguf))
            record(staging, name, gguf_sha256, weights_sha256(weights))
    except KeyError as error:
        raise ModelUnavailable(f"{path} lacks the metadata {error}; take a file made by a current llama.cpp") from error


def hub_config(gguf: Gguf) -> dict[str, Any]:
    """config.json of the model that a GGUF file describes."""
    heads = int(gguf.field("{arch}.attention.head_count"))
    hidden = int(gguf.field("{arch}.embedding_length"))
    positions = int(gguf.field("{arch}.context_length"))
    head_dim = int(gguf.field("{arch}.attention.key_length", hidden // heads))
    config = {
        "architectures": [_CLASSES[gguf.family]],
        "model_type": gguf.family,
        "vocab_size": len(gguf.field("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": int(gguf.field("{arch}.feed_forward_length")),
        "num_hidden_layers": int(gguf.field("{arch}.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(gguf.field("{arch}.attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "rms_norm_eps": _decimal(gguf.field("{arch}.attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(gguf.field("{arch}.rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(gguf, head_dim),
        "tie_word_embeddings": "output.weight" not in gguf.tensor_names,
        "torch_dtype": "float32" if _is_plain(gguf) else "bfloat16",
        "bos_token_id": gguf.field("tokenizer.ggml.bos_token_id", 1),
        "eos_token_id": gguf.field("tokenizer.ggml.eos_token_id"),
    }
    if gguf.family != "qwen2":
        config["attention_bias"] = "blk.0.attn_q.bias" in gguf.tensor_names
    return config


def _decimal(value: float) -> float:
    """The shortest decimal of a float32: 9.999999747378752e-06 -> 1e-05."""
    return float(str(np.float32(value)))


def _rope_scaling(gguf: Gguf, head_dim: int) -> dict[str, Any] | None:
    if _ROPE_FACTORS in gguf.tensor_names:
        return _llama3_scaling(gguf, head_dim)
    kind = gguf.field("{arch}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise UnsupportedModel(f"rope scaling {kind!r} is not supported in GGUF files; supported: linear, llama3")
    return {"rope_type": "linear", "factor": float(gguf.field("{arch}.rope.scaling.factor"))}


def _llama3_scaling(gguf: Gguf, head_dim: int) -> dict[str, Any]:
    """Llama 3.1 and later: llama.cpp stores one divisor per frequency; the published models differ only in `factor`."""
    stored = _array(gguf, _ROPE_FACTORS).reshape(-1)
    factor = float(stored.max())
    theta = float(gguf.field("{arch}.rope.freq_base", 10000.0))
    turns = 8192 * theta ** -(np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)
    smooth = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if expected.shape != stored.shape or not np.allclose(stored, expected, rtol=1e-3):
        raise UnsupportedModel("this file's rotary frequencies are not Llama 3's; take the checkpoint from the hub")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _array(gguf: Gguf, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    tensor = next(tensor for tensor in gguf.reader.tensors if tensor.name == name)
    return dequantize(tensor.data, tensor.tensor_type)


def _generation_config(gguf: Gguf) -> dict[str, Any]:
    eos = int(gguf.field("tokenizer.ggml.eos_token_id"))
    end_of_turn = int(gguf.field("tokenizer.ggml.eot_token_id", eos))
    return {
        "bos_token_id": gguf.field("tokenizer.ggml.bos_token_id", 1),
        "eos_token_id": sorted({eos, end_of_turn}),
        "do_sample": False,
    }


def _is_plain(gguf: Gguf) -> bool:
    return all(tensor.tensor_type == GGMLQuantizationType.F32 for tensor in gguf.reader.tensors)


def _read_all(gguf: Gguf, progress: Progress, what: str) -> dict[str, Array]:
    """Every tensor by its hub name, dequantised."""
    weights: dict[str, Array] = {}
    total = sum(int(tensor.n_bytes) for tensor in gguf.reader.tensors)
    for name, array, done in _dequantised(gguf):
        weights[name] = array
        progress(what, done, total)
    return weights


def _dequantised(gguf: Gguf) -> Iterator[tuple[str, Array, int]]:
    heads = int(gguf.field("{arch}.attention.head_count"))
    kv_heads = int(gguf.field("{arch}.attention.head_count_kv", heads))
    done, is_plain = 0, _is_plain(gguf)
    for entry in gguf.reader.tensors:
        done += int(entry.n_bytes)
        if entry.name == _ROPE_FACTORS:
            continue
        array = np.array(dequantize(entry.data, entry.tensor_type), dtype=np.float32)
        if gguf.family == "llama" and ".attn_q." in entry.name:
            array = _rotary_halves(array, heads)
        elif gguf.family == "llama" and ".attn_k." in entry.name:
            array = _rotary_halves(array, kv_heads)
        yield hub_name(entry.name), array if is_plain else bfloat16(array), done


def _rotary_halves(array: Floats, heads: int) -> Floats:
    """Undo llama.cpp's order of a Llama projection's rows: pairs (x0, y0, x1, y1, ...) back to halves (x..., y...)."""
    rows = array.shape[0]
    pairs = array.reshape(heads, rows // heads // 2, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def hub_name(name: str) -> str:
    """transformers' name of a llama.cpp tensor. Raises UnsupportedModel for one that has none."""
    if name in _TOP:
        return _TOP[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _IN_LAYER:
        raise UnsupportedModel(f"tensor {name} is not part of a plain Llama, Qwen2 or Qwen3 model")
    return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"


def _save_sharded(weights: dict[str, Array], folder: Path) -> None:
    """Write safetensors of at most 2 GiB (or one tensor) each."""
    shards: list[dict[str, Array]] = [{}]
    used = 0
    for name, array in weights.items():
        if used and used + array.nbytes > _SHARD_BYTES:
            shards.append({})
            used = 0
        shards[-1][name] = array
        used += array.nbytes
    names = _shard_names(len(shards))
    for file, shard in zip(names, shards, strict=True):
        write_arrays(shard, folder / file)
    if len(shards) > 1:
        weight_map = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
