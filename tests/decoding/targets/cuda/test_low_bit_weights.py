"""Guards quantised checkpoints that stay packed in memory, from published layouts to texts, on a processor.

The processor's forward and the GPU's use the reference of the product, and the GPU's once the kernel, interpreted.

Guards keys and values in FP8: the same bytes whichever method writes them, near texts, and memory that is told.

Packed weights and Domino's loop on a GPU itself: the logits and texts that a processor has.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.checkpoints.cache_folder import silent
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_low_bit, read_weights
from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Context, LookupCorpus, Method
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.errors import UnsupportedModel
from decoding.methods.registry import METHODS, load_method
from decoding.methods.trees import Bounds
from decoding.serving import load
from decoding.serving.load import load_text_decoder, memory_needed
from decoding.targets.cuda import CudaModel
from decoding.targets.fast_target import FastModel, FastSequence, FastTarget
from decoding.targets.llama_model import LlamaModel
from kernels.gpu import tree_attention
from kernels.gpu.low_bit import LowBit
from kernels.gpu.tree_attention import read_rows
from tests.decoding.checkpoints.test_quantised import FORMATS, plain_checkpoint, quantised
from tests.decoding.methods.test_cuda_domino import HIDDEN, TOKENS, VOCAB
from tests.decoding.models.random_heads import ready_method, small_head
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint
from tests.decoding.targets.cuda.test_cuda_target import DEVICE, PATH, tokens
from tests.decoding.targets.cuda.test_cuda_target import TREE as TREE_FP8_CACHE

KEPT = [name for name in FORMATS if name != "fp8-blocks"]  # blocks of 24 columns are refused
SAMPLERS = (Sampler(), Sampler(0.8, 1))
PROMPT = tuple(range(5, 25))
TREE = Draft((5, 9, 7, 6, 8), (-1, -1, 1, 1, 3))


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


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.usefixtures("references")
def test_logits_are_those_of_the_dequantised_model(name: str, tmp_path: Path) -> None:
    """Fused or, where the orders of columns differ, not; on both forwards."""
    path, _ = quantised(tmp_path, *FORMATS[name])
    want = logits(FastTarget.load(path))
    assert want.abs().max() > 3
    for kind in (FastModel, CudaModel):
        torch.testing.assert_close(logits(kept(path, kind)), want, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("one_thread")
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


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that belong to no sequence hold anything
@pytest.mark.parametrize("name", ["awq", "float-rows", "int-rows"])
def test_with_the_kernels_themselves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "_PROGRAMS", 8)
    path, _ = quantised(tmp_path, *FORMATS[name])
    torch.testing.assert_close(logits(kept(path, CudaModel)), logits(FastTarget.load(path)), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", KEPT)
def test_matrices_stay_packed(name: str, tmp_path: Path) -> None:
    """Bytes of a number: its bits, and what it needs of scales and zero points in groups of 32 or rows of 64 and 96."""
    path, _ = quantised(tmp_path, *FORMATS[name])
    numbers = load_config(path).layer_parameters
    assert matrix_bytes(path) < numbers * (0.75 if "4" in name or name == "awq" else 1.3)


@pytest.mark.usefixtures("one_thread")
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


@pytest.mark.usefixtures("one_thread")
def test_from_the_command_lines_name_to_a_text(tmp_path: Path) -> None:
    path, _ = quantised(tmp_path, *FORMATS["packed-4-zeros"])
    decoder = load_text_decoder(str(path), dtype="stored", device="cpu", progress=silent)
    assert decoder.target.weight_dtype == "stored" and decoder.target.runtime == "cpu"
    plain: Any = FastTarget.load(path)
    assert text(decoder.target, load_method("plain"), Sampler()) == text(plain, load_method("plain"), Sampler())  # type: ignore[arg-type]


@pytest.mark.usefixtures("one_thread")
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


@pytest.fixture
def references_fp8_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def small(path: Path, is_small: bool = True) -> FastTarget:
    model = CudaModel(load_config(path), read_weights(path), torch.float32, DEVICE)
    model.fp8_cache = is_small
    return FastTarget(model)


def walked(target: FastTarget) -> Tensor:
    """Logits of two sequences together, and of one that goes on behind a path out of place."""
    one, two = (target.open([], Sampler()) for _ in range(2))
    scores = target.score(
        [ForwardInput(one, tokens(9, 1), TREE_FP8_CACHE), ForwardInput(two, tokens(4, 2), Draft.chain(tokens(3, 4)))]
    )
    target.commit(one, PATH)
    scores += target.score([ForwardInput(one, tokens(2, 3), TREE_FP8_CACHE)])
    return torch.cat([torch.as_tensor(each.logits) for each in scores]).cpu()


def committed_rows(target: FastTarget, method: Method, sampler: Sampler) -> tuple[list[int], Tensor]:
    """A text, and the bytes of its keys, values and scales."""
    closed: list[FastSequence] = []
    target.close = closed.append  # type: ignore[method-assign]
    request = Request(tuple(tokens(20, 1)), method, 24, sampler)
    found = [token for each in decode(target, [request]) for token in each.committed]
    (sequence,) = closed
    return found, sequence.cache.own.data[:, : sequence.cached].clone()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("references_fp8_cache")
def test_logits_are_near_those_of_a_whole_cache(family: Family, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family, seed=3)
    got, want = walked(small(path)), walked(small(path, is_small=False))
    distance = (got - want).abs().mean() / want.abs().mean()
    assert 1e-4 < distance < 0.1, "FP8 has four significant bits"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that belong to no sequence hold anything
def test_the_kernels_compute_what_the_references_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "_PROGRAMS", 8)
    path = tiny_checkpoint(tmp_path, "qwen3", seed=3)
    got = walked(small(path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    torch.testing.assert_close(got, walked(small(path)), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.8, 1)])
@pytest.mark.usefixtures("references_fp8_cache")
def test_every_method_leaves_the_bytes_of_plain_decoding(sampler: Sampler, tmp_path: Path) -> None:
    """Rows of drafts that were accepted, in place or moved, hold what plain decoding writes; and so texts are equal."""
    path = tiny_checkpoint(tmp_path, "llama", seed=3)
    want, rows = committed_rows(small(path), load_method("plain"), sampler)
    assert len(set(want)) > 3
    for name in METHODS:
        target = small(path)
        got, others = committed_rows(target, ready_method(name, target), sampler)
        assert got == want, name
        both = min(rows.shape[1], others.shape[1])
        assert both >= len(want) + 18 and torch.equal(rows[:, :both], others[:, :both]), name


@pytest.mark.usefixtures("one_thread")
@pytest.mark.usefixtures("references_fp8_cache")
def test_a_kept_prefix_is_used_again(tmp_path: Path) -> None:
    target = small(tiny_checkpoint(tmp_path, "llama", seed=3))
    first = text(target, load_method("plain"), Sampler())
    assert text(target, load_method("plain"), Sampler()) == first
    assert target.open(list(range(5, 25)), Sampler()).cached == 19


@pytest.mark.usefixtures("one_thread")
@pytest.mark.usefixtures("references_fp8_cache")
def test_rows_take_half_of_bf16_and_their_scales(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "llama", head_dim=64)
    target, config = small(path), load_config(path)
    sequence = target.open([], Sampler())
    target.score([ForwardInput(sequence, tokens(5, 1), Draft())])
    data = sequence.cache.own.data
    planes = 2 * config.layers * config.kv_heads
    assert data.nbytes / data.shape[1] == 64 * (planes + 1)  # one plane has room for the scales of 16
    assert config.fp8_token_bytes == 68 * planes
    assert read_rows(data, range(planes), 5, planes, torch.float32).isfinite().all()


@pytest.mark.usefixtures("one_thread")
def test_the_option_reaches_the_model_and_is_refused_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_checkpoint(tmp_path)
    with pytest.raises(UnsupportedModel, match="need one GPU and our own forward: leave --kv-dtype out"):
        load_text_decoder(str(path), dtype="fp32", device="cpu", kv_dtype="fp8", progress=silent)
    with pytest.raises(ValueError, match="choose one of: auto, fp8"):
        load_text_decoder(str(path), device="cpu", kv_dtype="fp4", progress=silent)
    monkeypatch.setattr(load, "runs_kernels", lambda device: True)
    decoder = load_text_decoder(str(path), dtype="fp32", device="cpu", kv_dtype="fp8", progress=silent)
    assert decoder.target.model.fp8_cache  # type: ignore[attr-defined]


@pytest.mark.usefixtures("one_thread")
def test_memory_of_a_token_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LARGE_BYTES", 1)
    path = tiny_checkpoint(tmp_path, head_dim=128)
    told = [memory_needed(path, "bf16", fp8_cache=is_small) for is_small in (False, True)]
    assert [line is not None and line.split("each token of a text ")[1][:4] for line in told] == ["2 kB", "1 kB"]


METHODSOfPackedOnGpu = ("plain", "jacobi", "medusa", "dflash", "domino", "path_tree", "eagle3")


def on_gpu(path: Path) -> FastTarget:
    return FastTarget(CudaModel(load_config(path), read_low_bit(path), torch.float32, "cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", KEPT)
def test_logits(name: str, tmp_path: Path) -> None:
    path, _ = quantised(tmp_path, *FORMATS[name])
    torch.testing.assert_close(logits(on_gpu(path)), logits(FastTarget.load(path)), rtol=0, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "family"), [("awq", "llama"), ("fp8-blocks-of-32", "qwen3")])
def test_texts(name: str, family: Family, tmp_path: Path) -> None:
    path, _ = quantised(tmp_path, *FORMATS[name], family)
    target, reference = on_gpu(path), FastTarget.load(path)
    for sampler in SAMPLERS:
        want = text(reference, load_method("plain"), sampler)
        for method in METHODSOfPackedOnGpu:
            assert text(target, ready_method(method, target), sampler) == want, method


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.7, 5)], ids=str)
def test_domino_s_loop(sampler: Sampler) -> None:
    """The loop that runs as one graph guesses what the level-by-level way does."""
    torch.manual_seed(0)
    method = load_method("domino", head=small_head("domino", HIDDEN, VOCAB, "loud"))
    embedding = torch.randn(VOCAB, HIDDEN).to("cuda")
    method.begin(TOKENS, None, Context(sampler, embedding, embedding, LookupCorpus()))
    for depth in (4, 4, 2):
        states = torch.randn(depth, HIDDEN).to("cuda")
        want = method.grown(states, TOKENS, None, width=1, children=1, bounds=Bounds(depth)).tokens  # type: ignore[attr-defined]
        assert tuple(method._drafter.looped(states, TOKENS)) == want  # type: ignore[attr-defined]
