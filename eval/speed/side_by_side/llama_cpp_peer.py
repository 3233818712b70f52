"""llama.cpp as a peer through llama-cpp-python, if installed: our weights, quantised by its own quantiser.

A user would take the fastest of the usual quantisations, with or without its own prompt lookup; each is a peer of its own.
"""

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from torch import Tensor

from decoding.checkpoints.adapter import merged_weights
from decoding.checkpoints.catalog import resolve
from decoding.checkpoints.embedded import EMBEDDED_NAMES, embedded_gguf
from decoding.checkpoints.gguf import hub_name
from decoding.checkpoints.model_config import ModelConfig, load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.errors import ModelError
from decoding.serving.text_decoder import TextDecoder
from eval.speed.side_by_side.peer_process import Ask, Peer, PeerModel

QUANTISATIONS: Mapping[str, int] = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # llama_ftype of llama.h
# Tokens that prompt lookup drafts; its documentation has 10 as the default and advises 2 without a GPU.
WAYS: Mapping[str, int] = {"": 0, " lookup 2": 2, " lookup 10": 10}


def is_installed() -> bool:
    return find_spec("llama_cpp") is not None


def gguf_of(name: str) -> Path | None:
    """The GGUF file from which a model was converted; None for a model that came as a checkpoint."""
    if name in EMBEDDED_NAMES:
        return embedded_gguf()
    return Path(name).expanduser() if name.endswith(".gguf") else None


def write_merged(decoder: TextDecoder, source: Path, out: Path) -> Path:
    """Write the GGUF file `source` with fp32 tensors and the decoder's adapter merged in."""
    reader, folder = GGUFReader(source), resolve(decoder.name)
    config, changed = load_config(folder), _changed(decoder, folder)
    writer = GGUFWriter(out, config.family)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for entry in reader.tensors:
        merged = changed.get(hub_name(entry.name)) if entry.name != "rope_freqs.weight" else None
        kept = np.asarray(dequantize(entry.data, entry.tensor_type), np.float32)
        tensor = kept if merged is None else _in_its_order(merged, entry.name, config)
        writer.add_tensor(entry.name, tensor, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _changed(decoder: TextDecoder, folder: Path) -> dict[str, Tensor]:
    """The matrices that the decoder's adapter changes, with what it adds."""
    if decoder.adapter is None:
        return {}
    names = {f"{module}.weight" for module in decoder.adapter.factors}
    return {name: tensor for name, tensor in merged_weights(read_weights(folder), decoder.adapter) if name in names}


def _in_its_order(tensor: Tensor, name: str, config: ModelConfig) -> npt.NDArray[np.float32]:
    """A matrix as llama.cpp stores it: rows of a Llama's queries and keys stand in rotary pairs."""
    heads = config.heads if ".attn_q." in name else config.kv_heads if ".attn_k." in name else 0
    ordered = _rotary_pairs(tensor, heads) if heads and config.family == "llama" else tensor
    return np.ascontiguousarray(ordered.float().numpy())


def _rotary_pairs(tensor: Tensor, heads: int) -> Tensor:
    """The rows of a Llama projection in llama.cpp's order: (x0, y0, x1, y1, ...) instead of the halves (x..., y...)."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def quantised(merged: Path) -> list[Path]:
    """Files next to `merged`, one for each of QUANTISATIONS, by llama.cpp's quantiser. Raises ModelError where it fails."""
    import llama_cpp

    files = []
    for name, kind in QUANTISATIONS.items():
        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype = kind
        file = merged.with_name(f"{name}-{merged.name}")
        if llama_cpp.llama_model_quantize(str(merged).encode(), str(file).encode(), options):
            raise ModelError(f"llama.cpp could not write {merged} in {name}; its message is above")
        files.append(file)
    return files


def load(peer: PeerModel) -> dict[str, Peer]:
    """Greedy decoding of every file of `peer.gguf`, in every way. A file's peers are named after what its name begins with."""
    loaded: dict[str, Peer] = {}
    for file, (way, tokens) in product(peer.gguf, WAYS.items()):
        model = _model(peer, file, tokens)
        loaded[f"llama.cpp {file.name.partition('-')[0]}{way}"] = partial(_generate, model, peer.stop_ids)
    return loaded


def _model(peer: PeerModel, file: Path, lookup_tokens: int) -> Any:
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    draft = LlamaPromptLookupDecoding(num_pred_tokens=lookup_tokens) if lookup_tokens else None
    return Llama(str(file), n_ctx=peer.context, n_threads=peer.threads, draft_model=draft, verbose=False)


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
