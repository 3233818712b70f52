"""Masks learn the same on a GPU's forward as on a processor's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from decoding.checkpoints.mask_adapter import Ahead
from decoding.checkpoints.weight_files import read_weights
from tests.decoding.models.random_heads import random_masks
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.training.model.test_gpu_model import forest, packed, small
from training.heads.mask_model import GpuMaskModel, MaskModel, _seen, mask_blocks, mask_rows, padded
from training.run.base import Base, load_base
from training.run.gpu_model import BLOCK

__all__ = ["small"]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("depths", [3, 8])
def test_blocks_of_masks_hold_all_that_masks_see(depths: int) -> None:
    one, chance = forest(3 * BLOCK - 20, 0), np.random.default_rng(1)
    anchors = np.sort(chance.choice(one.rows, 2 * BLOCK, replace=False)).astype(np.int32)
    answers = replace(one, sources=anchors, owners=np.zeros(len(anchors), np.int32))
    masks = padded(mask_rows(answers, range(len(anchors)), depths), BLOCK)
    blocks = mask_blocks(
        np.concatenate([one.ends(), np.zeros(20, np.int32)]), np.repeat(masks.anchors, depths), depths, CPU
    )
    count = len(masks.anchors) * depths
    want = _seen(one, masks)
    want = np.concatenate([want[:, : one.rows], np.zeros((count, 20), bool), want[:, one.rows :]], 1)
    dense = create_mask(blocks.mask_mod, 1, 1, count, 3 * BLOCK + count, device="cpu")[0, 0]
    assert dense.tolist() == want.tolist()
    assert blocks.full_kv_num_blocks is not None and blocks.full_kv_indices is not None
    for row in range(count // BLOCK):
        part = want[row * BLOCK : (row + 1) * BLOCK].reshape(BLOCK, -1, BLOCK)
        partly = blocks.kv_indices[0, 0, row, : blocks.kv_num_blocks[0, 0, row]].tolist()
        wholly = blocks.full_kv_indices[0, 0, row, : blocks.full_kv_num_blocks[0, 0, row]].tolist()
        assert set(np.flatnonzero(part.any((0, 2))).tolist()) <= {*partly, *wholly}
        assert not {*partly} & {*wholly} and all(part[:, key].all() for key in wholly)


@pytest.mark.usefixtures("small")
def test_predictions_and_gradients_equal_those_on_a_cpu(tmp_path: Path) -> None:
    base = load_base(str(tiny_checkpoint(tmp_path, "llama", seed=3)))
    check(base, CPU, 1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compiled_on_a_gpu(tmp_path: Path) -> None:
    check(load_base(str(tiny_checkpoint(tmp_path, "llama", head_dim=16, seed=3))), CUDA, 5e-3)


def check(base: Base, device: torch.device, error: float) -> None:
    adapter, one = random_masks(base.config, 3), packed(base)
    noise = np.random.default_rng(2).standard_normal((2, 2, 2, 8, base.config.hidden_size), dtype=np.float32)
    adapter = replace(adapter, ahead=Ahead(noise[0], 0.1 * noise[1]))
    masks = mask_rows(one, range(0, len(one.sources), 2), 3, stride=2, ahead=2)
    found, gradients = list[Tensor](), list[dict[str, Tensor]]()
    for kind, where in ((MaskModel, CPU), (GpuMaskModel, device)):
        model = kind(base.config, read_weights(base.folder), adapter, torch.float32, where)
        predicted = model.predictions(one, masks)
        paired = model.paired(predicted, one, masks)
        loss = -(predicted.target.softmax(-1) * paired.log_softmax(-1)).sum(-1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        found.append(paired.detach().cpu())
        gradients.append({name: leaf.grad.cpu() for name, leaf in model.trained.items() if leaf.grad is not None})
    torch.testing.assert_close(found[1], found[0], rtol=error, atol=error)
    names = {"embeddings", "down", "up", "before", "after", "followers", "ahead_down", "ahead_up"}
    assert set(gradients[1]) == names
    for name, want in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], want, rtol=10 * error, atol=error, msg=name)
