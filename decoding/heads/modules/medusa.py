"""Medusa's heads (arXiv 2401.10774): each guesses one token further ahead, all from the same hidden state of the target."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoding.heads.head import Head, HeadConfig


class ResBlock(nn.Module):
    """x + SiLU(W x + b). W and b are zero at first, so an untrained head guesses what the LM head does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return x + functional.silu(self.linear(x))


class MedusaHead(Head):
    """Reads its last tap, the output of the target's final norm; head i guesses the token 2 + i positions after that state's.

    heads: how many. layers: how often each head applies its residual block, one and the same, as in the released code.
    own_lm_head: whether each head has its own output matrix, as released heads do; otherwise it shares the target's.
    """

    sizes: ClassVar[Mapping[str, Any]] = {"heads": 4, "layers": 1, "own_lm_head": False}

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(ResBlock(config.hidden) for _ in range(self.size("heads")))
        self.lm_heads = nn.ModuleList(
            nn.Linear(config.hidden, config.vocab, bias=False)
            for _ in range(self.size("heads") if self.size("own_lm_head") else 0)
        )

    def forward(self, states: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, heads, hidden]."""
        found = []
        for block in self.blocks:
            x = states
            for _ in range(self.size("layers")):
                x = block(x)
            found.append(x)
        return torch.stack(found, 1)

    def logits(self, states: Tensor, lm_head: Tensor, ids: Tensor | None = None) -> Tensor:
        """[..., heads, size] from `forward`'s states [..., heads, hidden]. lm_head [size, hidden]: the target's rows `ids`."""
        if not self.size("own_lm_head"):
            return states @ lm_head.T
        own: list[Tensor] = [each.weight for each in self.lm_heads]  # type: ignore[misc]
        weights = own if ids is None else [each[ids] for each in own]
        return torch.stack([states[..., i, :] @ weight.T for i, weight in enumerate(weights)], -2)
