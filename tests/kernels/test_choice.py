"""The choice kernel makes exactly the choices of the reference and of the CPU's own code.

Philox against its authors' known answers, and the noise made from it.
"""

import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from decoding.engine.sampler import keyed_argmax
from kernels.gpu.choice import choose, choose_reference
from kernels.gpu.philox import gumbel, philox4x32
from kernels.gumbel import GUMBEL_MAX, GUMBEL_MIN
from tests.kernels.ragged_data import DEVICE

SEEDS = (3, -7, 2**62 + 9, 5 + (1 << 32))


def test_rows_with_keys_of_their_own() -> None:
    """Flat logits make the noise decide, across tiles; a row at temperature 0 among them takes the first of equals."""
    torch.manual_seed(0)
    logits = torch.randn(6, 2100, device=DEVICE)
    logits[4, [70, 1500, 2099]] = 9.0
    temperature = torch.tensor([0.7, 1.0, 3.0, 0.05, 0.0, 1.0], device=DEVICE)
    seed, position = torch.tensor([*SEEDS, 0, 3], device=DEVICE), torch.tensor([0, 17, 900, 5, 6, 7], device=DEVICE)
    chosen = choose(logits, temperature, seed, position)
    assert chosen.tolist() == choose_reference(logits, temperature, seed, position).tolist()
    assert int(chosen[4]) == 70
    for row in (0, 1, 2, 3):
        heat = float(temperature[row])
        assert int(chosen[row]) == keyed_argmax(logits[row].float().cpu().numpy(), heat, SEEDS[row], int(position[row]))


def test_equal_sums_go_to_the_first() -> None:
    """Logits so large that the noise is rounded away: which tile was looked into first must not matter."""
    logits = torch.full((8, 3000), 2.0**30, device=DEVICE)
    args = (torch.ones(8, device=DEVICE), torch.arange(8, device=DEVICE), torch.arange(8, device=DEVICE))
    assert choose(logits, *args).tolist() == [0] * 8


def test_sums_that_differ_in_their_last_bit() -> None:
    """Logits that undo the noise: what is left is rounding, so noise that is merely near decides otherwise."""
    seeds, ids = range(6), torch.arange(2100, device=DEVICE)
    logits = torch.stack([5 - gumbel(seed, 4, ids) for seed in seeds])
    key, position = torch.tensor(seeds, device=DEVICE), torch.full((6,), 4, device=DEVICE)
    arguments = logits, torch.ones(6, device=DEVICE), key, position
    assert choose(*arguments).tolist() == choose_reference(*arguments).tolist()


def test_forbidden_tokens_are_never_chosen() -> None:
    """Where few are allowed their noise is small and bounds are loose: more tiles than one must be looked into."""
    torch.manual_seed(1)
    logits = torch.zeros(30, 2100, device=DEVICE)
    allowed = torch.rand(30, 2100, device=DEVICE) < 0.003
    allowed[:, 1200] = True
    heat, key = torch.ones(30, device=DEVICE), torch.arange(30, device=DEVICE)
    heat[3] = 0
    chosen = choose(logits, heat, key, key, allowed)
    assert chosen.tolist() == choose_reference(logits, heat, key, key, allowed).tolist()
    assert allowed[key, chosen].all()


@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter counts")
def test_the_second_pass_reads_only_tiles_that_may_hold_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that goes through all tiles one after another takes longer than the first pass, which reads all logits."""
    loads: list[int] = []
    load = InterpreterBuilder.create_masked_load

    def counted(*args: object) -> object:
        loads[-1] += 1
        return load(*args)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted)
    one = torch.ones(1, dtype=torch.long)
    for tiles in (10, 30):
        loads.append(0)
        logits = torch.zeros(1, 1024 * tiles)
        logits[0, 5] = 60.0
        assert choose(logits, torch.ones(1), one, one).item() == 5
    assert loads[1] - loads[0] == 20 * 4, "the first pass reads heat, seed, position and logits of every tile"


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
