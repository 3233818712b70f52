"""llama.cpp as a peer through llama-cpp-python, if installed: our weights, in the quantisation of their GGUF file."""

import shutil
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import quantize
from torch import Tensor

from decoding.checkpoints.adapters.adapter import merged_weights
from decoding.checkpoints.embedded import EMBEDDED_NAMES, embedded_gguf
from decoding.checkpoints.gguf.convert import hub_name
from decoding.checkpoints.resolve import load_config, read_weights, resolve
from decoding.errors import UnsupportedModel
from decoding.serving.text_decoder import TextDecoder
from eval.speed.side_by_side.peer_process import Ask, Peer, PeerModel


def is_installed() -> bool:
    return find_spec("llama_cpp") is not None


def gguf_of(name: str) -> Path | None:
    """The GGUF file from which a model was converted; None for a model that came as a checkpoint."""
    if name in EMBEDDED_NAMES:
        return embedded_gguf()
    return Path(name).expanduser() if name.endswith(".gguf") else None


def write_merged(decoder: TextDecoder, source: Path, out: Path) -> Path:
    """Write a copy of the GGUF file `source` with the decoder's adapter merged in; every tensor keeps its quantisation.

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
    """The rows of a Llama projection in llama.cpp's order: (x0, y0, x1, y1, ...) instead of the halves (x..., y...)."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def load(peer: PeerModel) -> dict[str, Peer]:
    """llama.cpp's plain decoding with the file that `write_merged` wrote."""
    from llama_cpp import Llama

    model = Llama(str(peer.gguf), n_ctx=peer.context, n_threads=peer.threads, verbose=False)
    return {"llama.cpp": partial(_generate, model, peer.stop_ids)}


def _generate(model: Any, stop_ids: frozenset[int], ask: Ask) -> tuple[list[int], float]:
    start, first_ms, tokens = perf_counter(), 0.0, list[int]()
    for token in model.generate(list(ask.prompt), temp=0.0, repeat_penalty=1.0, reset=True):
        first_ms = first_ms or 1e3 * (perf_counter() - start)
        if token in stop_ids and not ask.exact:
            break
        tokens.append(token)
        if len(tokens) == ask.limit:
            break
    model.reset()
    return tokens, first_ms
