"""A way round a block head's layers: what the target's last state tells by itself, as Medusa's heads read it."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class LastState(nn.Module):
    """For each of the places behind it, a part of the state and a correction: gain * h + up(silu(down(h))).

    That is a head of Medusa (arXiv 2401.10774, 2.2.1) of low rank, and the LM head understands it from the first step on; a
    block's attention takes very long to find the same. Places beyond the last one share its weights.
    """

    def __init__(self, width: int, places: int, rank: int) -> None:
        super().__init__()
        self._places, self._rank = places, rank
        self.gain = nn.Parameter(torch.full((places, 1), 0.5))
        self.down = nn.Parameter(torch.randn(places * rank, width) / width**0.5)
        self.up = nn.Parameter(torch.zeros(places * width, rank))

    def forward(self, last: Tensor, first: int, count: int) -> Tensor:
        """[blocks, count, width] for places from `first` on behind states `last` [blocks, width]; 0 is the second token."""
        wanted = torch.arange(first, first + count, device=last.device).clamp_max(self._places - 1)
        inner = functional.silu(functional.linear(last, self.down)).view(-1, self._places, self._rank)
        outer = self.up.view(self._places, -1, self._rank)[wanted]
        corrections = torch.einsum("bpr,pwr->bpw", inner[:, wanted], outer)
        out: Tensor = self.gain[wanted] * last[:, None] + corrections
        return out
