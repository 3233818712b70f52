"""Tiny random checkpoints of each supported family in hub layout, written by transformers itself.

Not trained on anything: they exist so that tests run the real loading and decoding code in milliseconds.
"""

import json
from itertools import islice, product
from pathlib import Path
from string import ascii_letters
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,  # sharp enough that greedy text is not one token for ever
}

Family = Literal["llama", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CLASSES: dict[Family, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def tiny_checkpoint(
    path: Path,
    family: Family = "llama",
    seed: int = 0,
    *,
    vocab: int = 320,
    tie: bool = True,
    sharded: bool = False,
    bin: bool = False,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write a random two-layer model and a byte-level BPE tokenizer of `vocab` tokens (259 to 2,963) into `path`.

    `config` overrides any field of the family's transformers configuration, e.g. `num_hidden_layers=3`.
    """
    config_class, model_class = _CLASSES[family]
    fields = SIZES | {"vocab_size": vocab, "tie_word_embeddings": tie}
    fields |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config_class(**(fields | config))).to(dtype)
        _jitter_vectors(model)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path, max_shard_size="20KB" if sharded else "1GB")
    if bin:
        _as_pickles(path)
    write_tokenizer(path, vocab)
    return path


def _jitter_vectors(model: Any) -> None:
    """Random norms and biases, for a loader that drops them must not go unnoticed."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)


def _as_pickles(path: Path) -> None:
    """Replace the safetensors files by the older pytorch_model*.bin layout."""
    from safetensors.torch import load_file

    for file in sorted(path.glob("*.safetensors")):
        torch.save(load_file(file), path / _bin_name(file.name))
        file.unlink()
    index = path / "model.safetensors.index.json"
    if index.exists():
        content = json.loads(index.read_text())
        content["weight_map"] = {name: _bin_name(file) for name, file in content["weight_map"].items()}
        (path / "pytorch_model.bin.index.json").write_text(json.dumps(content))
        index.unlink()


def _bin_name(name: str) -> str:
    return name.replace("model", "pytorch_model", 1).replace(".safetensors", ".bin")


def tiny_tokenizer(vocab: int = 320) -> Tokenizer:
    """Byte-level BPE: three special tokens, 256 bytes, then pairs of letters until there are `vocab` tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(islice(product(ascii_letters, repeat=2), vocab - len(SPECIAL) - len(alphabet)))
    tokens = [*SPECIAL, *alphabet, *(left + right for left, right in pairs)]
    if len(tokens) != vocab:
        raise ValueError(f"vocab must lie between 259 and 2963, not {vocab}")
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_tokenizer(path: Path, vocab: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with a ChatML template."""
    tiny_tokenizer(vocab).save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
