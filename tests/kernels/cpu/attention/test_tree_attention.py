"""Attention of trees on a processor: near to numpy in fp64, and a row is the same to the bit wherever it stands."""

import numpy as np
import pytest

from kernels.cpu.processor import variant
from kernels.cpu.tree_attention import attend_reference
from tests.kernels.cpu.attention.attention_cases import TREE, Case, check_rows_are_the_same_everywhere, seen_in

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")


@pytest.mark.parametrize("before", [0, 1, 15, 63, 64, 65, 150])
@pytest.mark.parametrize(("dim", "heads"), [(64, 3), (128, 1), (64, 2)])
def test_attention_is_near_the_reference(before: int, dim: int, heads: int) -> None:
    case, seen = Case(before + 9, dim, heads), seen_in(TREE)
    places = list(range(before + 9))
    for mask in (seen, np.tril(np.ones((9, 9), bool))):
        want = attend_reference(case.queries[before:], case.keys, case.values, before, mask)
        np.testing.assert_allclose(case.run(places, 9, mask), want, atol=2e-6)


@pytest.mark.parametrize("before", [0, 7, 60, 64, 130])
def test_a_row_is_the_same_to_the_bit_wherever_it_stands(before: int) -> None:
    check_rows_are_the_same_everywhere(Case(before + 9), before)
