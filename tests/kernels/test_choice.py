"""The choice kernel makes exactly the choices of the reference and of the CPU's own code."""

import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from decoding.engine.sampler import keyed_argmax
from kernels.gpu.choice import choose, choose_reference
from kernels.gpu.philox import gumbel
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
