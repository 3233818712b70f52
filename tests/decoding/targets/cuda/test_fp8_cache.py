"""Guards keys and values in FP8: the same bytes whichever method writes them, near texts, and memory that is told."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from decoding.checkpoints.cache_folder import silent
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
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
from decoding.targets.fast_target import FastSequence, FastTarget
from kernels.gpu import tree_attention
from kernels.gpu.rope import read_rows
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint
from tests.decoding.targets.cuda.test_cuda_target import DEVICE, PATH, TREE, tokens
from tests.decoding.targets.cuda.test_low_bit_weights import text

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def small(path: Path, is_small: bool = True) -> FastTarget:
    model = CudaModel(load_config(path), read_weights(path), torch.float32, DEVICE)
    model.fp8_cache = is_small
    return FastTarget(model)


def walked(target: FastTarget) -> Tensor:
    """Logits of two sequences together, and of one that goes on behind a path out of place."""
    one, two = (target.open([], Sampler()) for _ in range(2))
    scores = target.score(
        [ForwardInput(one, tokens(9, 1), TREE), ForwardInput(two, tokens(4, 2), Draft.chain(tokens(3, 4)))]
    )
    target.commit(one, PATH)
    scores += target.score([ForwardInput(one, tokens(2, 3), TREE)])
    return torch.cat([torch.as_tensor(each.logits) for each in scores]).cpu()


def committed_rows(target: FastTarget, method: Method, sampler: Sampler) -> tuple[list[int], Tensor]:
    """A text, and the bytes of its keys, values and scales."""
    closed: list[FastSequence] = []
    target.close = closed.append  # type: ignore[method-assign]
    request = Request(tuple(tokens(20, 1)), method, 24, sampler)
    found = [token for each in decode(target, [request]) for token in each.committed]
    (sequence,) = closed
    return found, sequence.cache.own.data[:, : sequence.cached].clone()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("references")
def test_logits_are_near_those_of_a_whole_cache(family: Family, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family, seed=3)
    got, want = walked(small(path)), walked(small(path, is_small=False))
    distance = (got - want).abs().mean() / want.abs().mean()
    assert 1e-4 < distance < 0.1, "FP8 has four significant bits"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that belong to no sequence hold anything
def test_the_kernels_compute_what_the_references_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "_PROGRAMS", 8)
    path = tiny_checkpoint(tmp_path, "qwen3", seed=3)
    got = walked(small(path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    torch.testing.assert_close(got, walked(small(path)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.8, 1)])
@pytest.mark.usefixtures("references")
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


@pytest.mark.usefixtures("references")
def test_a_kept_prefix_is_used_again(tmp_path: Path) -> None:
    target = small(tiny_checkpoint(tmp_path, "llama", seed=3))
    first = text(target, load_method("plain"), Sampler())
    assert text(target, load_method("plain"), Sampler()) == first
    assert target.open(list(range(5, 25)), Sampler()).cached == 19


@pytest.mark.usefixtures("references")
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


def test_memory_of_a_token_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LARGE_BYTES", 1)
    path = tiny_checkpoint(tmp_path, head_dim=128)
    told = [memory_needed(path, "bf16", fp8_cache=is_small) for is_small in (False, True)]
    assert [line is not None and line.split("each token of a text ")[1][:4] for line in told] == ["2 kB", "1 kB"]
