"""Converts the tokenizer inside a GGUF file to tokenizer.json and tokenizer_config.json in hub layout.

llama.cpp stores vocabulary, merges and the *name* of a pre-tokenizer; what that name means is code on both sides, so names
that are not listed here are refused, because a guess would tokenise text almost right.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from decoding.errors import UnsupportedModel

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
