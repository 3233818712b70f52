"""A shortcut around a block head's layers: guesses from the target's last state alone, as in Medusa's heads."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class LastState(nn.Module):
    """For each position after it, a multiple of the state and a correction: gain * h + up(silu(down(h))).

    This is a low-rank head of Medusa (arXiv 2401.10774, 2.2.1), from which the LM head can read tokens from the first step on;
    a block's attention takes very long to learn the same. Positions beyond the last one share its weights.
    """

    def __init__(self, width: int, places: int, rank: int) -> None:
        super().__init__()
        self._places, self._rank = places, rank
        self.gain = nn.Parameter(torch.full((places, 1), 0.5))
        self.down = nn.Parameter(torch.randn(places * rank, width) / width**0.5)
        self.up = nn.Parameter(torch.zeros(places * width, rank))

    def forward(self, last: Tensor, first: int, count: int) -> Tensor:
        """[blocks, count, width] for positions from `first` on after states `last` [blocks, width]; 0 is the second token."""
        wanted = torch.arange(first, first + count, device=last.device).clamp_max(self._places - 1)
        inner = functional.silu(functional.linear(last, self.down)).view(-1, self._places, self._rank)
        outer = self.up.view(self._places, -1, self._rank)[wanted]
        corrections = torch.einsum("bpr,pwr->bpw", inner[:, wanted], outer)
        out: Tensor = self.gain[wanted] * last[:, None] + corrections
        return out
