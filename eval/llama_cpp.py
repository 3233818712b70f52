"""llama.cpp as a peer, through llama-cpp-python where it is installed: our weights, requantised as its file had them."""

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import quantize
from torch import Tensor

from decoding.adapter import merged_weights
from decoding.checkpoint import load_config, read_weights, resolve
from decoding.convert import hub_name
from decoding.embedded import EMBEDDED_NAMES, embedded_gguf
from decoding.errors import UnsupportedModel
from decoding.text import TextDecoder


def is_installed() -> bool:
    return find_spec("llama_cpp") is not None


def gguf_of(name: str) -> Path | None:
    """The GGUF file that a model was converted from; None for one that came as a checkpoint."""
    if name in EMBEDDED_NAMES:
        return embedded_gguf()
    return Path(name).expanduser() if name.endswith(".gguf") else None


def write_merged(decoder: TextDecoder, source: Path, out: Path) -> Path:
    """A copy of the GGUF file `source` with the decoder's adapter merged in; every tensor keeps its quantisation.

    Raises UnsupportedModel for a quantisation that cannot be written (llama.cpp's k-quants).
    """
    shutil.copyfile(source, out)
    if decoder.adapter is None:
        return out
    folder = resolve(decoder.name)
    config, adapter = load_config(folder), decoder.adapter
    merged = {name: tensor for name, tensor in merged_weights(read_weights(folder), adapter) if _changed(name, decoder)}
    for entry in GGUFReader(out, "r+").tensors:
        tensor = merged.get(hub_name(entry.name)) if entry.name != "rope_freqs.weight" else None
        if tensor is None:
            continue
        if config.family == "llama" and ".attn_q." in entry.name:
            tensor = _rotary_pairs(tensor, config.heads)
        elif config.family == "llama" and ".attn_k." in entry.name:
            tensor = _rotary_pairs(tensor, config.kv_heads)
        try:
            entry.data[:] = quantize(np.ascontiguousarray(tensor.float().numpy()), entry.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedModel(f"{source} has {entry.tensor_type.name} tensors, which cannot be written") from error
    return out


def _changed(name: str, decoder: TextDecoder) -> bool:
    return decoder.adapter is not None and name.removesuffix(".weight") in decoder.adapter.factors


def _rotary_pairs(tensor: Tensor, heads: int) -> Tensor:
    """llama.cpp's order of a Llama projection's rows: (x0, y0, x1, y1, ...) for the halves (x..., y...)."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


class LlamaCpp:
    """A `Peer` of `eval.peers`: greedy decoding of token ids, with an empty cache for each prompt."""

    def __init__(self, path: Path, stop: frozenset[int], context: int) -> None:
        from llama_cpp import Llama

        self._model = Llama(str(path), n_ctx=context, n_threads=torch.get_num_threads(), verbose=False)
        self._stop = stop

    def __call__(self, prompt: Sequence[int], limit: int) -> tuple[list[int], float]:
        start, first_ms, tokens = perf_counter(), 0.0, list[int]()
        for token in self._model.generate(list(prompt), temp=0.0, repeat_penalty=1.0, reset=True):
            first_ms = first_ms or 1e3 * (perf_counter() - start)
            if token in self._stop:
                break
            tokens.append(token)
            if len(tokens) == limit:
                break
        self._model.reset()
        return tokens, first_ms
