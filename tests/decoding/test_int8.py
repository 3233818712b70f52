"""int8 weights: near to what they round, and a row's result does not depend on its neighbours."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from decoding import int8
from decoding.draft import Draft
from decoding.errors import UnsupportedModel
from decoding.fast_target import FastTarget
from decoding.int8 import FEW_ROWS, Int8Layers, quantised
from decoding.load import load_text_decoder
from decoding.sampling import Sampler
from tests.tiny_models import tiny_checkpoint

TOKENS = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"), num_hidden_layers=2, attention_bias=True)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def logits_of(target: FastTarget, draft: Draft) -> Tensor:
    sequence = target.open(TOKENS, Sampler())
    target.score([(sequence, TOKENS[:-1], Draft())])
    target.commit(sequence, [])
    (scores,) = target.score([(sequence, TOKENS[-1:], draft)])
    target.close(sequence)
    return scores.logits


def test_integers_use_their_range_and_are_chosen_for_the_scale_as_rounded() -> None:
    weight = torch.cat([random(50, 64) * torch.logspace(-3, 3, 50)[:, None], torch.zeros(1, 64)])
    rounded, scale = quantised(weight)
    assert scale.dtype == torch.bfloat16
    assert rounded[:-1].abs().amax(1).min() >= 126, "every row uses the whole range: no scale is shared"
    error = (rounded * scale.float()[:, None] - weight).abs()
    assert (error <= 1.01 * scale.float()[:, None]).all()  # half a step, and one where the largest was clamped
    assert error.mean() < 0.3 * scale.float().mean()


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 40])
@pytest.mark.parametrize("columns", [64, 40])
def test_a_projection_is_the_product_with_the_rounded_weights(rows: int, columns: int) -> None:
    weight, bias, x = random(48, columns), random(48, seed=1), random(rows, columns, seed=2)
    rounded, scale = quantised(weight)
    got = Int8Layers().projection(weight, bias)(x)
    want = x.bfloat16().double() @ (rounded.double() * scale.double()[:, None]).t()
    torch.testing.assert_close(got.double() - bias, want, rtol=2**-7, atol=0.02)


def test_layers_share_the_scratch_buffer_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, of which the last is smaller, and a row that is longer than the buffer."""
    monkeypatch.setattr(int8, "_BLOCK_BYTES", 4 * 64 * 5)
    layers, x = Int8Layers(), random(9, 64)
    wide, narrow = layers.projection(random(96, 64)), layers.projection(random(32, 64, seed=1))
    first = narrow(x)
    wide(x)
    assert torch.equal(narrow(x), first)
    rounded, scale = quantised(random(96, 64))
    torch.testing.assert_close(
        wide(x), x.bfloat16().float() @ (rounded * scale.float()[:, None]).t(), rtol=2**-7, atol=0.02
    )
    assert layers.projection(random(3, 999))(random(9, 999)).shape == (9, 3)


@pytest.mark.parametrize("count", [FEW_ROWS - 1, 12])
def test_a_nodes_logits_do_not_depend_on_its_siblings(checkpoint: Path, count: int) -> None:
    """Bit for bit: the first node among siblings that are quiet, and among others whose activations are not."""
    target = FastTarget.load(checkpoint, torch.int8, cache_bytes=0)
    siblings = [tuple(range(start, start + count)) for start in (10, 200)]
    first, second = (logits_of(target, Draft((9, *more[1:]), (-1,) * count)) for more in siblings)
    assert torch.equal(first[:2], second[:2])
    assert not torch.equal(first[2:], second[2:])


def test_few_rows_and_many_are_alike(checkpoint: Path) -> None:
    """The two ways differ in the order of sums only, before both round to bf16."""
    target = FastTarget.load(checkpoint, torch.int8, cache_bytes=0)
    alone, crowd = logits_of(target, Draft.chain([9])), logits_of(target, Draft((9, *range(20, 40)), (-1,) * 21))
    torch.testing.assert_close(alone, crowd[:2], atol=0.05 * float(alone.abs().max()), rtol=0)


def test_text_is_nearly_that_of_fp32_and_it_needs_a_processor(checkpoint: Path) -> None:
    exact = logits_of(FastTarget.load(checkpoint, cache_bytes=0), Draft.chain(TOKENS))
    rough = logits_of(load_text_decoder(str(checkpoint), dtype="int8").target, Draft.chain(TOKENS))  # type: ignore[arg-type]
    similar = torch.nn.functional.cosine_similarity(exact, rough)
    assert similar.min() > 0.995
    assert not torch.equal(exact, rough)
    with pytest.raises(UnsupportedModel, match="processor"):
        load_text_decoder(str(checkpoint), dtype="int8", target="hf")
