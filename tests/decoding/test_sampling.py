"""The sampler follows the softmax, and its shortcut changes nothing."""

import pytest
import torch

from decoding.sampling import Sampler
from kernels.philox import gumbel


def test_pick_follows_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.2, -0.5, 0.0])
    want = torch.softmax(logits / 0.8, 0)
    picks = torch.tensor([Sampler(0.8, seed).pick(logits, 17) for seed in range(6000)])
    assert (picks.bincount(minlength=4) / 6000 - want).abs().max() < 0.025


@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_leaving_out_hopeless_tokens_is_exact(spread: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for position in range(40):
        logits = spread * torch.randn(3000, generator=generator)
        sampler = Sampler(0.7, seed=9)
        whole = logits / 0.7 + gumbel(9, position, torch.arange(3000))
        assert sampler.pick(logits, position) == int(whole.argmax()) == int(sampler.rank(logits, position).argmax())


def test_greedy_takes_the_first_of_equals_whatever_the_seed() -> None:
    logits = torch.tensor([0.0, 3.0, 3.0, 1.0])
    assert {Sampler(0.0, seed).pick(logits, seed) for seed in range(5)} == {1}


def test_masked_tokens_never_win() -> None:
    logits = torch.full((50,), float("-inf"))
    logits[7] = -100.0
    assert {Sampler(1.3, seed).pick(logits, 3) for seed in range(50)} == {7}


def test_chooser_is_pick_row_by_row() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    for sampler in (Sampler(), Sampler(1.0, 3)):
        choose = sampler.chooser(logits, lambda row: 10 + row)
        assert [choose(row) for row in (2, 0, 3, 1, 2)] == [
            sampler.pick(logits[row], 10 + row) for row in (2, 0, 3, 1, 2)
        ]


def test_derived_seeds_differ_and_repeat() -> None:
    base = Sampler(0.5, 1)
    seeds = {base.derive("generate", i).seed for i in range(100)} | {base.derive("plan", 0).seed}
    assert len(seeds) == 101
    assert base.derive("plan", 0) == base.derive("plan", 0)
    assert base.derive("plan", 0).temperature == 0.5


@pytest.mark.parametrize("temperature", [-0.1, float("nan")])
def test_bad_temperatures_are_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        Sampler(temperature)
