"""The sampler follows the softmax, and its shortcut changes nothing.

Guards the recorded origin of each token.
"""

import pytest
import torch

from decoding.engine.rounds import Round, origins
from decoding.engine.sampler import Sampler
from decoding.engine.tensor_choice import argmax_rows, chooser, rank, reference_pick
from kernels import gumbel as numpy_noise
from kernels.gpu.philox import gumbel, gumbel_of, philox4x32


def test_pick_follows_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.2, -0.5, 0.0])
    want = torch.softmax(logits / 0.8, 0)
    picks = torch.tensor([Sampler(0.8, seed).pick(logits.numpy(), 17) for seed in range(6000)])
    assert (picks.bincount(minlength=4) / 6000 - want).abs().max() < 0.025


@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_leaving_out_hopeless_tokens_is_exact(spread: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for position in range(40):
        logits = spread * torch.randn(3000, generator=generator)
        sampler = Sampler(0.7, seed=9)
        whole = logits / 0.7 + gumbel(9, position, torch.arange(3000))
        best = int(whole.argmax())
        assert sampler.pick(logits.numpy(), position) == best == int(sampler.rank(logits.numpy(), position).argmax())
        assert torch.equal(torch.from_numpy(sampler.rank(logits.numpy(), position)), rank(sampler, logits, position))


def test_greedy_takes_the_first_of_equals_whatever_the_seed() -> None:
    logits = torch.tensor([0.0, 3.0, 3.0, 1.0])
    assert {Sampler(0.0, seed).pick(logits.numpy(), seed) for seed in range(5)} == {1}


def test_masked_tokens_never_win() -> None:
    logits = torch.full((50,), float("-inf"))
    logits[7] = -100.0
    assert {Sampler(1.3, seed).pick(logits.numpy(), 3) for seed in range(50)} == {7}


def test_chooser_is_pick_row_by_row() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    for sampler in (Sampler(), Sampler(1.0, 3)):
        choose = chooser(sampler, logits, lambda row: 10 + row)
        assert [choose(row) for row in (2, 0, 3, 1, 2)] == [
            sampler.pick(logits[row].numpy(), 10 + row) for row in (2, 0, 3, 1, 2)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fast_choice_is_the_plain_one(dtype: torch.dtype) -> None:
    """Many seeds, positions, temperatures and shapes of distribution, near ties and forbidden tokens among them."""
    generator = torch.Generator().manual_seed(2)
    for number in range(160):
        logits = (0.1, 1.0, 3.0, 9.0)[number % 4] * torch.randn(2500 if number % 20 else 49152, generator=generator)
        if number % 5 == 0:
            logits = logits.round()
        logits[::3] = logits[::3] if number % 3 else float("-inf")
        logits, seed = logits.to(dtype), number * 7919 + (number << 33)
        for temperature in (0.3, 1.0):
            want = reference_pick(logits, temperature, seed, number)
            assert Sampler(temperature, seed).pick(logits.float().numpy(), number) == want


def test_the_fast_words_are_philox() -> None:
    tokens, zeros = torch.arange(5000), torch.zeros(5000, dtype=torch.long)
    for seed, position in ((5, 17), ((1 << 40) + 3, 900), ((1 << 64) - 1, 0)):
        words = philox4x32((tokens, zeros + position, zeros, zeros), (seed & 0xFFFFFFFF, seed >> 32))[0] >> 8
        found = numpy_noise.first_words(seed, position, tokens.numpy())
        fast = torch.from_numpy(found.astype("int64"))
        assert torch.equal(words, fast) and torch.equal(gumbel_of(fast), gumbel(seed, position, tokens))
        assert torch.equal(torch.from_numpy(numpy_noise.gumbel_of(found)), gumbel_of(fast))


def test_the_bound_that_leaves_tokens_out_holds_for_every_word() -> None:
    """-log(-log u) <= -log(1 - u) as fp32 computes it: were it broken at the upper end, the best token would be left out."""
    words = torch.cat([torch.arange(0, 2**24, 997), torch.arange(2**24 - 2000, 2**24)])
    left = (2**25 - 1 - 2 * words).float() / 2**25
    assert bool((gumbel_of(words) <= -left.log() + 1e-4).all())


def test_greedy_rows_are_torchs() -> None:
    rows = torch.randn(9, 5000, generator=torch.Generator().manual_seed(4)).bfloat16()
    assert argmax_rows(rows) == [int(row.float().argmax()) for row in rows]


def make(index: int, draft: tuple[int, ...], parents: tuple[int, ...], accepted: tuple[int, ...], committed: tuple[int, ...],
         forced: tuple[int, ...] = ()) -> Round:  # fmt: skip
    return Round(index, 0, 1, 1, draft, parents, accepted, committed, forced, 0.0, 1.0, 0.0)


def test_every_token_of_the_text_has_one_origin() -> None:
    rounds = [make(0, (1, 2, 3), (-1, 0, 1), (0,), (1, 9), (8,)), make(1, (), (), (), (7,))]
    placed = origins(rounds)
    assert [each.token for each in placed] == [token for r in rounds for token in r.text_tokens]
    assert [each.origin for each in placed] == ["accepted", "bonus", "forced", "bonus"]
    assert [each.round_index for each in placed] == [0, 0, 0, 1]


def test_a_guess_that_was_rejected_before_is_recycled() -> None:
    """2 after 1 was guessed and rejected in the first round; the same after another token is a new guess."""
    rounds = [make(0, (1, 2), (-1, 0), (), (5,)), make(1, (1, 2, 6), (-1, 0, 1), (0, 1, 2), (1, 2, 6, 9))]
    assert [each.origin for each in origins(rounds)][1:] == ["accepted", "recycled", "accepted", "bonus"]


def test_branches_of_a_tree_follow_their_parents() -> None:
    rounds = [make(0, (1, 2, 3, 4), (-1, -1, 0, 1), (1, 3), (2, 4, 9)), make(1, (3,), (-1,), (0,), (3, 7))]
    assert [each.origin for each in origins(rounds)] == ["accepted", "accepted", "bonus", "accepted", "bonus"]


def test_an_accepted_token_cut_at_the_end_counts_as_the_targets_own() -> None:
    """A stop token at the end of the accepted path is the last that was committed."""
    assert [each.origin for each in origins([make(0, (1, 2), (-1, 0), (0,), (1, 2))])] == ["accepted", "bonus"]
