"""What rows cost: between and beyond what was measured, and by the kernels where nothing was."""

import pytest

import kernels.cpu.processor as processor
from decoding.engine.experience import DEFAULT_COSTS, VARIANT_COSTS, RowCosts, default_costs


def test_between_and_beyond_the_entries() -> None:
    costs = RowCosts((1, 16, 32), (1.0, 1.3, 2.1))
    assert [costs.at(rows) for rows in (1, 16, 32)] == [1.0, 1.3, 2.1]
    assert costs.at(24) == pytest.approx(1.7) and costs.at(48) == pytest.approx(2.9)
    assert RowCosts.even(0.06).at(11) == pytest.approx(1.6)


def test_prices_are_those_of_the_spans_that_a_forward_may_reach() -> None:
    costs = RowCosts((1, 16, 32), (1.0, 1.3, 2.1))
    assert costs.prices(16) == [pytest.approx(0.02), pytest.approx(0.05)]
    assert costs.prices(15) == [pytest.approx(0.02)]


def test_noise_promises_no_gain() -> None:
    assert RowCosts.measured((1, 4, 8), (5.0, 4.0, 10.0)).steps == (1.0, 1.0, 2.0)


@pytest.mark.parametrize(
    ("rows", "steps"),
    [((1,), (1.0,)), ((2, 4), (1.0, 2.0)), ((1, 1), (1.0, 2.0)), ((1, 2), (1.0, 0.0)), ((1, 2), (1.0,))],
)
def test_what_is_no_table(rows: tuple[int, ...], steps: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="row"):
        RowCosts(rows, steps)


def test_defaults_go_by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [(variant, VARIANT_COSTS[variant]) for variant in ("amx_int8", "avx2")]
    for variant, want in (*known, ("avx_vnni", DEFAULT_COSTS), (None, DEFAULT_COSTS)):
        monkeypatch.setattr(processor, "variant", lambda variant=variant: variant)
        assert default_costs("kernels") == want
        assert default_costs("cuda") == DEFAULT_COSTS
