"""The rows of mask tokens before a layer against torch's operators, and all other rows as they were."""

import pytest
import torch

from kernels.gpu.norm import adapt_and_norm, adapt_and_norm_reference
from tests.kernels.ragged_data import DEVICE


@pytest.mark.parametrize("rank", [3, 8, 21])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_masked_rows_are_adapted_and_others_stay(dtype: torch.dtype, rtol: float, rank: int) -> None:
    torch.manual_seed(0)
    x, normed = (torch.randn(5, 40, device=DEVICE).to(dtype) for _ in range(2))
    down, up = (torch.randn(rank, 40, device=DEVICE).to(dtype) * 0.2 for _ in range(2))
    weight = torch.randn(40, device=DEVICE).to(dtype)
    masked = torch.tensor([False, True, False, True, True], device=DEVICE)
    given = x, normed, masked, down, up, weight, 1e-2
    got, want = adapt_and_norm(*given), adapt_and_norm_reference(*given)
    for one, other, before in zip(got, want, (x, normed), strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=0.03 if dtype == torch.bfloat16 else 1e-5)
        assert torch.equal(one[~masked], before[~masked])
        assert not torch.allclose(one[masked], before[masked], atol=0.1)
