"""The forward for a GPU: equal to the one for a CPU, in logits and gradients, whatever trees a pack holds."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

from decoding.checkpoints.adapter import About, Adapter, Factors
from decoding.checkpoints.weight_files import read_weights
from tests.decoding.models.jacobi_data import invented_trajectories
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.config import LoraConfig, TrainConfig
from training.jacobi.states import JacobiBuilder, JacobiConfig, JacobiPack, examples, jacobi_loss
from training.jacobi.trajectory import Trajectory
from training.packs.groups import tokenise
from training.packs.packing import ROOT, Pack, fill, pack
from training.run import gpu_model
from training.run.base import Base, initial_adapter, load_base, pack_loss, ready_model
from training.run.gpu_model import BLOCK, GpuModel, TrainModel, TreeRows, block_mask

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(str(tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param)))


def packed(base: Base) -> Pack:
    [one], _ = pack(tokenise(agent_groups(3, 3), base.tokenizer, 2), 1000, seed=0)
    return one


def forest(rows: int, seed: int) -> Pack:
    """A random forest in depth-first order."""
    chance, path, parents = np.random.default_rng(seed), list[int](), list[int]()
    for row in range(rows):
        if chance.random() < 0.1:
            del path[int(chance.integers(len(path) + 1)) :]
        parents.append(path[-1] if path else ROOT)
        path.append(row)
    ids = np.zeros(rows, np.int32)
    return Pack(ids, np.array(parents, np.int32), ids[:0], ids[:0], ids[:0].astype(np.float32), ids[:0], ())


@pytest.mark.parametrize("seed", range(5))
def test_ends_say_what_a_row_sees(seed: int) -> None:
    one = forest(400, seed)
    row, key = np.arange(400)[:, None], np.arange(400)[None]
    assert ((key <= row) & (row < one.ends()[key])).tolist() == one.mask().tolist()


def jacobi_packs(seed: int, how: JacobiConfig, rows: int = 400) -> list[JacobiPack]:
    """Answers whose prompts begin alike, some of which continue an earlier prompt and a part of its answer."""
    chance, found, texts = Random(seed), list[Trajectory](), [tuple(range(3, 9))]
    for number, one in enumerate(invented_trajectories()):
        prompt = (*chance.choice(texts), *(chance.randrange(10, 300) for _ in range(3)))
        texts.append((*prompt, *one.answer_ids[: chance.randrange(len(one.answer_ids) + 1)]))
        found.append(replace(one, prompt=f"{seed} {number}", prompt_ids=prompt, prefix=3))
    packs, left_out = fill(list(examples(found, how, seed).values()), rows, seed, JacobiBuilder)
    assert not left_out
    return packs


JACOBI = {
    "windows": JacobiConfig(window=3, draws=3),
    "single blocks": JacobiConfig(method="cllm", draws=2),
}


@pytest.mark.parametrize("how", JACOBI.values(), ids=JACOBI)
def test_ends_say_what_a_row_of_noise_sees(how: JacobiConfig) -> None:
    """Chains that branched off at ascending places were no depth-first order, so a GPU trained them by dense masks."""
    for seed in range(20):
        for one in jacobi_packs(seed, how):
            row, key = np.arange(one.rows)[:, None], np.arange(one.rows)[None]
            assert (((key <= row) & (row < one.ends()[key])) == one.mask()).all()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("sweeps", [None, 2])
def test_losses_on_jacobi_packs_equal_those_on_a_cpu(base: Base, sweeps: int | None) -> None:
    how = replace(JACOBI["windows"], sweeps=sweeps)
    kinds = (TrainModel, GpuModel)
    models = [kind(base.config, read_weights(base.folder), None, 0.0, torch.float32, CPU) for kind in kinds]
    packs = jacobi_packs(0, how)
    assert all(isinstance(models[1].rows(one), TreeRows) for one in packs)
    losses = [torch.stack([jacobi_loss(how, model, one, packs) for one in packs]) for model in models]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_hold_all_that_is_seen_and_whole_ones_nothing_else(seed: int) -> None:
    one = forest(4 * BLOCK, seed)
    seen, blocks = one.mask(), block_mask(one.ends(), CPU)
    assert blocks.full_kv_num_blocks is not None and blocks.full_kv_indices is not None
    for row in range(4):
        part = seen[row * BLOCK : (row + 1) * BLOCK].reshape(BLOCK, 4, BLOCK)
        partly = blocks.kv_indices[0, 0, row, : blocks.kv_num_blocks[0, 0, row]].tolist()
        wholly = blocks.full_kv_indices[0, 0, row, : blocks.full_kv_num_blocks[0, 0, row]].tolist()
        assert set(np.flatnonzero(part.any((0, 2))).tolist()) <= {*partly, *wholly}
        assert not {*partly} & {*wholly} and all(part[:, key].all() for key in wholly)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Little padding, and attention that has gradients on a CPU."""
    monkeypatch.setattr(gpu_model, "PADDED", BLOCK)
    monkeypatch.setattr(gpu_model, "flex_attention", by_dense_mask)
    gpu_model.compiled_functions.cache_clear()
    yield
    gpu_model.compiled_functions.cache_clear()


def by_dense_mask(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, enable_gqa: bool) -> Tensor:
    dense = create_mask(block_mask.mask_mod, 1, 1, query.shape[2], key.shape[2], device="cpu")
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=dense, enable_gqa=enable_gqa)


def test_attention_in_blocks_is_attention_by_the_mask() -> None:
    one, chance = forest(3 * BLOCK, 0), torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, one.rows, 16, generator=chance) for heads in (4, 2, 2))
    mask = block_mask(one.ends(), CPU)
    found = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
    torch.testing.assert_close(found, by_dense_mask(query, key, value, mask, True), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("low_rank", [True, False])
def test_logits_and_gradients_equal_those_on_a_cpu(base: Base, low_rank: bool) -> None:
    adapter, one = some_adapter(base) if low_rank else None, packed(base)
    factors, scale = (adapter.factors, adapter.scale) if adapter else (None, 0.0)
    kinds = (TrainModel, GpuModel)
    models = [kind(base.config, read_weights(base.folder), factors, scale, torch.float32, CPU) for kind in kinds]
    assert isinstance(models[1].rows(one), TreeRows)
    losses = [pack_loss(model, one) for model in models]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-4)
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    for name, leaf in models[0].trained.items():
        torch.testing.assert_close(models[1].trained[name].grad, leaf.grad, rtol=1e-3, atol=2e-4, msg=name)


def some_adapter(base: Base) -> Adapter:
    """An adapter of which both factors matter."""
    new = initial_adapter(base, TrainConfig(lora=LoraConfig(rank=4, alpha=8.0), steps=1), About("", base.sha256))
    assert new
    chance = torch.Generator().manual_seed(1)
    filled = {m: Factors(f.a, 0.1 * torch.randn(f.b.shape, generator=chance)) for m, f in new.factors.items()}
    return Adapter(filled, new.rank, new.alpha, new.about)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_on_a_gpu(family: Family, tmp_path: Path) -> None:
    base = load_base(str(tiny_checkpoint(tmp_path, family, head_dim=16)))
    adapter, one = some_adapter(base), packed(base)
    models = [ready_model(base, adapter, torch.float32, torch.device(kind)) for kind in ("cpu", "cuda")]
    assert isinstance(models[1], GpuModel)
    losses = [pack_loss(model, one) for model in models]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(losses[1].cpu(), losses[0], rtol=1e-4, atol=1e-3)
    for name, leaf in models[0].trained.items():
        found = models[1].trained[name].grad
        assert found is not None
        torch.testing.assert_close(found.cpu(), leaf.grad, rtol=1e-2, atol=2e-3, msg=name)
