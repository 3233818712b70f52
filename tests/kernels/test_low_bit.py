"""The one form of packed weights: what its bytes mean, which weights can be joined, what is refused."""

import pytest
import torch

from kernels.gpu.low_bit import joined, packed
from tests.kernels.test_low_bit_product import random_weight


def test_what_the_bytes_of_four_bits_mean() -> None:
    """Number by number; the last block of 32 columns is not full."""
    torch.manual_seed(0)
    numbers = torch.randint(16, (3, 40), dtype=torch.uint8)
    scale, zero = torch.rand(3, 2), torch.randint(16, (3, 2), dtype=torch.uint8)
    weight = packed(numbers, scale, zero, torch.arange(40) // 32, 4)
    assert weight.numbers.shape == (3, 32) and weight.shape == (3, 40)
    meant = weight.dequantised()
    for row in range(3):
        for column in range(40):
            byte = int(weight.numbers[row, column // 32 * 16 + column % 16])
            number = byte >> 4 if column % 32 >= 16 else byte & 15
            assert number == numbers[row, column]
            group = column // 32
            assert meant[row, column] == (number - int(zero[row, group])) * scale[row, group]
    assert weight.nbytes == 3 * 32 + 3 * 2 * 4 + 3 * 2


def test_weights_of_one_form_are_joined() -> None:
    torch.manual_seed(1)
    one, other = (random_weight("int4", rows, 64, 32) for rows in (5, 7))
    both = joined([one, other])
    assert both is not None
    assert torch.equal(both.dequantised(), torch.cat([one.dequantised(), other.dequantised()]))
    assert joined([one, random_weight("int4", 5, 64, 64)]) is None
    assert joined([one, random_weight("int8", 5, 64, 32)]) is None
    assert joined([one, random_weight("int4", 5, 64, 32, is_ordered=True)]) is None


def test_a_part_and_a_copy_mean_the_same() -> None:
    torch.manual_seed(2)
    weight = random_weight("int8", 9, 64, 32, is_ordered=True)
    assert torch.equal(weight.rows(2, 5).to(torch.device("cpu")).dequantised(), weight.dequantised()[2:5])


@pytest.mark.parametrize(
    ("group", "told"),
    [(torch.arange(48) // 24, "groups of 24 columns cannot be kept packed"), (torch.arange(48) % 5, "not of one size")],
)
def test_groups_that_the_kernel_cannot_read_are_refused(group: torch.Tensor, told: str) -> None:
    groups = int(group.max()) + 1
    zero = torch.zeros(2, groups, dtype=torch.uint8)
    with pytest.raises(ValueError, match=told):
        packed(torch.zeros(2, 48, dtype=torch.uint8), torch.ones(2, groups), zero, group, 4)
