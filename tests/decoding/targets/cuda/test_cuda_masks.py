"""Mask tokens on the GPU's target: what they say is what they say on `fast_target`, and no other row sees them."""

from pathlib import Path

import pytest
import torch

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.methods.registry import load_method
from decoding.targets.cuda import CudaModel
from decoding.targets.fast_target import FastModel, FastTarget
from kernels.gpu import tree_attention
from tests.decoding.models.random_heads import random_masks
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.targets.cuda.test_cuda_target import DEVICE, references, tokens

__all__ = ["references"]
DEPTHS = 3


def both(folder: Path) -> tuple[FastTarget, FastTarget]:
    path = tiny_checkpoint(folder, "llama", seed=3)
    config, masks = load_config(path), random_masks(load_config(path), DEPTHS)
    models = (
        FastModel(config, read_weights(path), masks=masks),
        CudaModel(config, read_weights(path), torch.float32, DEVICE, masks),
    )
    fast, cuda = (FastTarget(model) for model in models)
    return fast, cuda


def said(target: FastTarget, masked: bool) -> torch.Tensor:
    """Logits after a root, three guesses and, where `masked`, three masks after the root and after the second guess."""
    first, second, third = target.mask_tokens[:3]
    tree = Draft((5, 9, 7, first, second, third, first, second, third), (-1, 0, 0, -1, 3, 4, 1, 6, 7))
    draft = tree if masked else Draft((5, 9, 7), (-1, 0, 0))
    sequence = target.open([], Sampler(), (1, 2))
    (scores,) = target.score([ForwardInput(sequence, tokens(6, 1), draft)])
    logits = torch.as_tensor(scores.logits).cpu().clone()
    target.close(sequence)
    return logits


def check(folder: Path, error: float = 0.0) -> None:
    """error: by which a row may differ with masks beside it, where torch sums in another order for more rows."""
    fast, cuda = both(folder)
    with_masks, without = said(cuda, True), said(cuda, False)
    torch.testing.assert_close(with_masks, said(fast, True), rtol=0, atol=6e-5)
    torch.testing.assert_close(with_masks[:4], without, rtol=0, atol=error)
    assert not torch.allclose(with_masks[4], with_masks[5], atol=0.1)


@pytest.mark.usefixtures("references")
def test_masks_say_what_they_say_elsewhere(tmp_path: Path) -> None:
    check(tmp_path, error=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that belong to no sequence hold anything
def test_with_the_kernels_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "_PROGRAMS", 8)
    check(tmp_path)


@pytest.mark.usefixtures("references")
@pytest.mark.parametrize("name", ["mask_tokens", "adaptive", "jacobi_forcing"])
def test_methods_that_ask_masks_give_plain_text(tmp_path: Path, name: str) -> None:
    _, cuda = both(tmp_path)
    for sampler in (Sampler(), Sampler(0.8, 1)):
        texts = []
        for method in ("plain", name):
            request = Request(tuple(tokens(20, 1)), load_method(method), 24, sampler)
            rounds = list(decode(cuda, [request]))
            texts.append([token for each in rounds for token in each.committed])
        assert texts[1] == texts[0] and len(set(texts[0])) > 3
