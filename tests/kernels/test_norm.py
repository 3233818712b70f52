"""The fused sum and norm against torch's operators."""

import pytest
import torch

from kernels.gpu.norm import add_rms_norm, add_rms_norm_reference
from tests.kernels.ragged_data import DEVICE


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
def test_sum_and_norm(dtype: torch.dtype, rtol: float) -> None:
    """In bf16 the interpreter cuts off where others round."""
    torch.manual_seed(0)
    x, delta = (torch.randn(3, 40, device=DEVICE).to(dtype) for _ in range(2))
    weight = torch.randn(40, device=DEVICE).to(dtype)
    got, want = (each(x, delta, weight, 1e-2) for each in (add_rms_norm, add_rms_norm_reference))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=0.02 if dtype == torch.bfloat16 else 1e-6)
