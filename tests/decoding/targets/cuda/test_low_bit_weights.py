"""Guards quantised checkpoints that stay packed in memory, from published layouts to texts, on a processor.

The processor's forward and the GPU's use the reference of the product, and the GPU's once the kernel, interpreted.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.checkpoints.cache_folder import silent
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_low_bit
from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Method
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.errors import UnsupportedModel
from decoding.methods.registry import METHODS, load_method
from decoding.serving import load
from decoding.serving.load import load_text_decoder, memory_needed
from decoding.targets.cuda import CudaModel
from decoding.targets.fast_target import FastModel, FastTarget
from decoding.targets.llama_model import LlamaModel
from kernels.gpu import tree_attention
from kernels.gpu.low_bit import LowBit
from tests.decoding.checkpoints.test_quantised import FORMATS, plain_checkpoint, quantised
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import Family

KEPT = [name for name in FORMATS if name != "fp8-blocks"]  # blocks of 24 columns are refused
SAMPLERS = (Sampler(), Sampler(0.8, 1))
PROMPT = tuple(range(5, 25))
TREE = Draft((5, 9, 7, 6, 8), (-1, -1, 1, 1, 3))

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def kept(path: Path, kind: type[LlamaModel] = FastModel) -> FastTarget:
    return FastTarget(kind(load_config(path), read_low_bit(path)))


def logits(target: FastTarget) -> Tensor:
    sequence = target.open([], Sampler())
    (scores,) = target.score([ForwardInput(sequence, list(PROMPT), TREE)])
    return torch.as_tensor(scores.logits)


def text(target: FastTarget, method: Method, sampler: Sampler) -> list[int]:
    return [token for each in decode(target, [Request(PROMPT, method, 16, sampler)]) for token in each.committed]


def matrix_bytes(path: Path) -> int:
    return sum(weight.nbytes for _, weight in read_low_bit(path) if isinstance(weight, LowBit))


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.usefixtures("references")
def test_logits_are_those_of_the_dequantised_model(name: str, tmp_path: Path) -> None:
    """Fused or, where the orders of columns differ, not; on both forwards."""
    path, _ = quantised(tmp_path, *FORMATS[name])
    want = logits(FastTarget.load(path))
    assert want.abs().max() > 3
    for kind in (FastModel, CudaModel):
        torch.testing.assert_close(logits(kept(path, kind)), want, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "family"), [("awq", "llama"), ("gptq-8-v2", "qwen2"), ("fp8-blocks-of-32", "qwen3")])
@pytest.mark.usefixtures("references")
def test_every_method_writes_plain_text(name: str, family: Family, tmp_path: Path) -> None:
    path, _ = quantised(tmp_path, *FORMATS[name], family)
    for target in (kept(path), kept(path, CudaModel)):
        for sampler in SAMPLERS:
            want = text(target, load_method("plain"), sampler)
            assert len(set(want)) > 3 or not sampler.temperature
            for method in METHODS:
                assert text(target, ready_method(method, target), sampler) == want, method


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that belong to no sequence hold anything
@pytest.mark.parametrize("name", ["awq", "float-rows", "int-rows"])
def test_with_the_kernels_themselves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "_PROGRAMS", 8)
    path, _ = quantised(tmp_path, *FORMATS[name])
    torch.testing.assert_close(logits(kept(path, CudaModel)), logits(FastTarget.load(path)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", KEPT)
def test_matrices_stay_packed(name: str, tmp_path: Path) -> None:
    """Bytes of a number: its bits, and what it needs of scales and zero points in groups of 32 or rows of 64 and 96."""
    path, _ = quantised(tmp_path, *FORMATS[name])
    numbers = load_config(path).layer_parameters
    assert matrix_bytes(path) < numbers * (0.75 if "4" in name or name == "awq" else 1.3)


def test_memory_is_told_of_what_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LARGE_BYTES", 1)
    told: list[int] = []
    monkeypatch.setattr(load, "free_bytes", lambda: told[-1])
    path, _ = quantised(tmp_path, *FORMATS["awq"])
    config = load_config(path)
    for device, size in (("cpu", 4), ("cuda", 2)):
        whole = matrix_bytes(path) + 2 * config.vocab_size * config.hidden_size * size
        for free, fits in ((whole + 1, True), (whole, False)):
            told.append(free)
            line = memory_needed(path, "stored", device=device)
            assert line is not None and line.startswith("weights in AWQ take 0.0 GB")
            assert ("are free" not in line) == fits, "to the byte"
    line = memory_needed(path, "bf16")
    assert line is not None and line.startswith("weights in bf16 take 0.0 GB")
    assert "AWQ weights are dequantised, and --dtype stored keeps them packed" in line


def test_from_the_command_lines_name_to_a_text(tmp_path: Path) -> None:
    path, _ = quantised(tmp_path, *FORMATS["packed-4-zeros"])
    decoder = load_text_decoder(str(path), dtype="stored", device="cpu", progress=silent)
    assert decoder.target.weight_dtype == "stored" and decoder.target.runtime == "cpu"
    plain: Any = FastTarget.load(path)
    assert text(decoder.target, load_method("plain"), Sampler()) == text(plain, load_method("plain"), Sampler())  # type: ignore[arg-type]


def test_what_cannot_be_kept_is_refused_in_one_line(tmp_path: Path) -> None:
    plain = plain_checkpoint(tmp_path / "plain")
    path, _ = quantised(tmp_path / "blocks", *FORMATS["fp8-blocks"])
    for folder, options, told in (
        (plain, {}, "is not quantised, so there is nothing to keep packed: give --dtype bf16"),
        (path, {}, "groups of 24 columns cannot be kept packed"),
        (path, {"target": "hf"}, "in our own forward and without an adapter"),
    ):
        with pytest.raises(UnsupportedModel, match=told) as caught:
            load_text_decoder(str(folder), dtype="stored", device="cpu", progress=silent, **options)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
