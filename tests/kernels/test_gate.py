"""The fused gate against torch's operators."""

import torch

from kernels.gpu.norm import gated, gated_reference
from tests.kernels.ragged_data import DEVICE


def test_gates_come_first() -> None:
    gate_up = torch.randn(3, 2 * 1030, device=DEVICE)
    torch.testing.assert_close(gated(gate_up), gated_reference(gate_up), rtol=1e-5, atol=1e-6)
