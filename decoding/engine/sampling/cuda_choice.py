"""The sampler's choice on a GPU, for rows of logits that are in its memory; `decoding.engine.sampling.sampler` calls it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.choice import choose


def chosen_tokens(logits: Tensor, temperature: float, seed: int, positions: Sequence[int]) -> list[int]:
    """argmax(logits / temperature + keyed noise) for every row of logits [rows, vocab]: the tokens of `numpy_choice`."""
    heat = torch.full((len(logits),), temperature, dtype=torch.float32, device=logits.device)
    signed = (seed + (1 << 63)) % (1 << 64) - (1 << 63)  # the same 64 bits
    key, position = torch.tensor([[signed] * len(logits), list(positions)], device=logits.device)
    tokens: list[int] = choose(logits.contiguous(), heat, key, position).tolist()
    return tokens
