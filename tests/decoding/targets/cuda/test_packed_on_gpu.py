"""Packed weights and Domino's loop on a GPU itself: the logits and texts that a processor has."""

from pathlib import Path

import pytest
import torch

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_low_bit
from decoding.engine.method import Context, LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.methods.registry import load_method
from decoding.methods.trees import Bounds
from decoding.targets.cuda import CudaModel
from decoding.targets.fast_target import FastTarget
from tests.decoding.checkpoints.test_quantised import FORMATS, quantised
from tests.decoding.methods.test_cuda_domino import HIDDEN, TOKENS, VOCAB
from tests.decoding.models.random_heads import ready_method, small_head
from tests.decoding.models.tiny_models import Family
from tests.decoding.targets.cuda.test_low_bit_weights import KEPT, SAMPLERS, logits, text

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
METHODS = ("plain", "jacobi", "medusa", "dflash", "domino", "path_tree", "eagle3")


def on_gpu(path: Path) -> FastTarget:
    return FastTarget(CudaModel(load_config(path), read_low_bit(path), torch.float32, "cuda"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", KEPT)
def test_logits(name: str, tmp_path: Path) -> None:
    path, _ = quantised(tmp_path, *FORMATS[name])
    torch.testing.assert_close(logits(on_gpu(path)), logits(FastTarget.load(path)), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "family"), [("awq", "llama"), ("fp8-blocks-of-32", "qwen3")])
def test_texts(name: str, family: Family, tmp_path: Path) -> None:
    path, _ = quantised(tmp_path, *FORMATS[name], family)
    target, reference = on_gpu(path), FastTarget.load(path)
    for sampler in SAMPLERS:
        want = text(reference, load_method("plain"), sampler)
        for method in METHODS:
            assert text(target, ready_method(method, target), sampler) == want, method


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
