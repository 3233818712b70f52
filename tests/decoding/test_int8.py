"""int8 weights: near to what they round, and a row's result does not depend on its neighbours, to the bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from decoding import int8
from decoding.draft import Draft
from decoding.engine import Request, decode
from decoding.errors import UnsupportedModel
from decoding.fast_target import FastTarget
from decoding.int8 import Int8Layers, has_fbgemm, quantised
from decoding.load import load_text_decoder
from decoding.method import METHODS
from decoding.sampling import Sampler
from tests.heads import ready_method
from tests.tiny_models import tiny_checkpoint

TOKENS = [5, 6, 7, 8]
WAYS = [pytest.param(True, marks=pytest.mark.skipif(not has_fbgemm(), reason="torch has no FBGEMM here")), False]


@pytest.fixture(params=WAYS, ids=["fbgemm", "weight only"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(int8, "has_fbgemm", lambda: request.param)
    return bool(request.param)


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


@pytest.mark.parametrize("rows", [1, 9, 40])
@pytest.mark.parametrize("columns", [64, 1536])
def test_a_projection_is_near_the_product(way: bool, rows: int, columns: int) -> None:
    """Rows of very different size, in input and weights alike, with the error of 8 and 7 bits at most."""
    weight = random(48, columns) * torch.logspace(-2, 2, 48)[:, None]
    bias, x = random(48, seed=1), random(rows, columns, seed=2) * torch.logspace(-3, 3, rows)[:, None]
    got, want = Int8Layers().projection(weight, bias)(x) - bias, x @ weight.t()
    size = x.norm(dim=1)[:, None] * weight.norm(dim=1) / columns**0.5
    assert ((got - want).abs() / size).square().mean().sqrt() < 0.03 * columns**0.5 / 8
    assert torch.equal(Int8Layers().projection(weight)(torch.zeros(2, columns)), torch.zeros(2, 48))


@pytest.mark.skipif(not has_fbgemm(), reason="torch has no FBGEMM here")
def test_turned_inputs_keep_their_bits() -> None:
    """Inputs with a few large numbers, as a model's are: there the 8 bits of the others are few."""
    weight, x = random(96, 576), random(20, 576, seed=1)
    x[:, ::97] *= 20
    want = x @ weight.t()
    as_is, turned = (Int8Layers().projection(weight, turns=turns)(x) - want for turns in (False, True))
    assert turned.norm() < 0.018 * want.norm() < 0.6 * as_is.norm()


@pytest.mark.skipif(not has_fbgemm(), reason="torch has no FBGEMM here")
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("columns", [40, 576, 1537])
def test_a_row_is_the_same_to_the_bit_in_any_company(columns: int, turns: bool) -> None:
    project, x = Int8Layers().projection(random(96, columns), turns=turns), random(1, columns, seed=1)
    alone = project(x)
    for count, scale in ((1, 1e-4), (7, 1e6), (16, 1.0), (200, 3.0)):
        assert torch.equal(project(torch.cat([x, scale * random(count, columns, seed=2)]))[:1], alone)


@pytest.mark.parametrize("count", [7, 12])
def test_a_nodes_logits_do_not_depend_on_its_siblings(way: bool, checkpoint: Path, count: int) -> None:
    """Bit for bit: the first node among siblings that are quiet, and among others whose activations are not."""
    target = FastTarget.load(checkpoint, torch.int8, cache_bytes=0)
    siblings = [tuple(range(start, start + count)) for start in (10, 200)]
    first, second = (logits_of(target, Draft((9, *more[1:]), (-1,) * count)) for more in siblings)
    assert torch.equal(first[:2], second[:2])
    assert not torch.equal(first[2:], second[2:])


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(1.0, 1)], ids=str)
def test_every_method_gives_plain_text(checkpoint: Path, sampler: Sampler) -> None:
    target = FastTarget.load(checkpoint, torch.int8)
    texts = {}
    for name in METHODS:
        request = Request(tuple(range(20, 40)), ready_method(name, target), 32, sampler)
        texts[name] = [token for each in decode(target, [request]) for token in each.committed]
    assert all(text == texts["plain"] for text in texts.values())


def test_text_is_nearly_that_of_fp32_and_it_needs_a_processor(way: bool, checkpoint: Path) -> None:
    exact = logits_of(FastTarget.load(checkpoint, cache_bytes=0), Draft.chain(TOKENS))
    rough = logits_of(load_text_decoder(str(checkpoint), dtype="int8").target, Draft.chain(TOKENS))  # type: ignore[arg-type]
    similar = torch.nn.functional.cosine_similarity(exact, rough)
    assert similar.min() > 0.98
    assert not torch.equal(exact, rough)
    with pytest.raises(UnsupportedModel, match="processor"):
        load_text_decoder(str(checkpoint), dtype="int8", target="hf")
