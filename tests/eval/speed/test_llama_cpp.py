"""The llama.cpp peer: its file carries our merged weights, and where the library is installed it writes what we write."""

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader

from decoding.checkpoints.adapter import About, Adapter, Factors, merged_weights
from decoding.checkpoints.cache_folder import silent
from decoding.checkpoints.catalog import resolve
from decoding.checkpoints.weight_files import read_weights
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from eval.speed.side_by_side.llama_cpp_peer import (
    QUANTISATIONS,
    WAYS,
    gguf_of,
    is_installed,
    load,
    quantised,
    write_merged,
)
from eval.speed.side_by_side.peer_process import Ask
from eval.speed.side_by_side.run import peer_model
from tests.decoding.models.tiny_gguf import write_gguf
from tests.decoding.models.tiny_models import tiny_checkpoint

MODULES = {f"model.layers.1.{name}" for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))


def adapted(tmp_path: Path, kind: GGMLQuantizationType) -> TextDecoder:
    """A model from a GGUF file, and an adapter that changes projections with and without llama.cpp's own row order."""
    original = tiny_checkpoint(tmp_path / "original", intermediate_size=64)
    plain = load_text_decoder(str(write_gguf(tmp_path / "tiny.gguf", original, kind)), dtype="fp32")
    draw = torch.Generator().manual_seed(0)
    shapes = {name.removesuffix(".weight"): tensor.shape for name, tensor in read_weights(resolve(plain.name))}
    factors = {
        name: Factors(torch.randn(2, shapes[name][1], generator=draw), torch.randn(shapes[name][0], 2, generator=draw))
        for name in MODULES
    }
    return TextDecoder(plain.target, plain.tokenizer, plain.name, Adapter(factors, 2, 2.0, About("tiny", "")))


@pytest.mark.parametrize(
    ("kind", "error"),
    [(GGMLQuantizationType.F32, 0.0), (GGMLQuantizationType.Q4_1, 2**-8)],  # which we round to bf16 when converting
)
def test_the_file_has_the_merged_weights(kind: GGMLQuantizationType, error: float, tmp_path: Path) -> None:
    decoder = adapted(tmp_path, kind)
    source = gguf_of(decoder.name)
    assert source == tmp_path / "tiny.gguf"
    merged = write_merged(decoder, source, tmp_path / "merged.gguf")
    want = dict(merged_weights(read_weights(resolve(decoder.name)), decoder.adapter))
    for name, tensor in read_weights(resolve(str(merged), silent)):
        distance = float((tensor.float() - want[name].float()).norm() / want[name].float().norm())
        assert distance <= (1e-6 if name.removesuffix(".weight") in MODULES else error), name


@pytest.mark.skipif(not is_installed(), reason="llama-cpp-python is not installed")
def test_it_writes_the_text_that_we_write(tmp_path: Path) -> None:
    original = tiny_checkpoint(tmp_path / "original", seed=5, intermediate_size=64)
    path = write_gguf(tmp_path / "F32-tiny.gguf", original)
    decoder = load_text_decoder(str(path), dtype="fp32")
    prompt = "SELECT name FROM singer WHERE country ="
    want = decoder.generate(prompt, SamplingParams(max_new_tokens=16)).tokens
    ask = Ask("llama.cpp", tuple(decoder.tokenizer.encode(prompt)), 16)
    peers = load(peer_model(decoder, 16, [path]))
    assert set(peers) == {f"llama.cpp F32{way}" for way in WAYS}
    for name, peer in peers.items():
        tokens, first_ms = peer(ask)
        assert tuple(tokens) == want and first_ms > 0, name


@pytest.mark.skipif(not is_installed(), reason="llama-cpp-python is not installed")
def test_its_quantiser_writes_each_kind(tmp_path: Path) -> None:
    decoder = adapted(tmp_path, GGMLQuantizationType.F32)
    source = gguf_of(decoder.name)
    assert source is not None
    files = quantised(write_merged(decoder, source, tmp_path / "merged.gguf"))
    for kind, file in zip(QUANTISATIONS, files, strict=True):
        assert kind in {entry.tensor_type.name for entry in GGUFReader(file).tensors}
