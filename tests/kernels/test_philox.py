"""Philox against its authors' known answers, and the noise made from it."""

import pytest
import torch

from kernels.gpu.philox import gumbel, philox4x32
from kernels.gumbel import GUMBEL_MAX, GUMBEL_MIN

# From the authors' Random123 distribution (kat_vectors, philox4x32 10 rounds): counter, key, output.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_known_answers(counter: str, key: str, want: str) -> None:
    c0, c1, c2, c3 = (torch.tensor([int(word, 16)]) for word in counter.split())
    k0, k1 = (int(word, 16) for word in key.split())
    assert [f"{int(word):08x}" for word in philox4x32((c0, c1, c2, c3), (k0, k1))] == want.split()


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    tokens = torch.arange(1000)
    whole = gumbel(5, 17, tokens)
    assert torch.equal(whole[[3, 999, 40]], gumbel(5, 17, torch.tensor([3, 999, 40])))
    for seed, position in ((5, 18), (6, 17), (5 + (1 << 32), 17)):
        assert not torch.equal(whole, gumbel(seed, position, tokens))


def test_noise_is_gumbel_and_within_its_bounds() -> None:
    noise = torch.cat([gumbel(seed, 0, torch.arange(50_000)) for seed in range(4)]).double()
    assert abs(noise.mean() - 0.5772) < 0.01
    assert abs(noise.var() - torch.pi**2 / 6) < 0.03
    assert noise.min() >= GUMBEL_MIN
    assert noise.max() <= GUMBEL_MAX


def test_the_bounds_hold_at_both_ends_of_the_uniform() -> None:
    """The sampler leaves out tokens that cannot win: that is exact only if these bounds are."""
    ends = (torch.tensor([0.5, 2**24 - 0.5], dtype=torch.float64)) / 2**24
    low, high = (-torch.log(-torch.log(ends))).float().tolist()
    assert GUMBEL_MIN <= low < GUMBEL_MIN + 0.001
    assert GUMBEL_MAX - 0.001 < high <= GUMBEL_MAX
