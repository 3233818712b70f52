"""The sampler's choice from tensors, for targets and heads on torch's operators: the tokens of `numpy_choice`."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decoding.engine.sampling.sampler import Sampler
from kernels.available import runs_kernels
from kernels.gumbel import GUMBEL_MAX, GUMBEL_MIN
from kernels.philox import gumbel


def chooser(sampler: Sampler, logits: Tensor, positions: Callable[[int], int]) -> Callable[[int], int]:
    """The target's choice per row of logits [rows, vocab], each made when first asked for.

    `positions(row)` is the position of the token that the row predicts.

    >>> choice = chooser(Sampler(), torch.tensor([[0.0, 1.0], [3.0, 2.0]]), lambda row: 10 + row)
    >>> choice(0), choice(1)
    (1, 0)
    """
    if sampler.temperature == 0.0:
        return argmax_rows(logits).__getitem__
    if runs_kernels(logits.device):
        return chosen_on_gpu(sampler, logits, [positions(row) for row in range(len(logits))]).__getitem__
    made: dict[int, int] = {}

    def choice(row: int) -> int:
        if row not in made:
            made[row] = _pick(sampler, logits[row], positions(row))
        return made[row]

    return choice


def argmax_rows(logits: Tensor) -> list[int]:
    """The first of the largest logits of every row [rows, vocab], on any device."""
    if logits.device.type != "cpu":
        return logits.argmax(-1).tolist()
    best: list[int] = logits.detach().float().numpy().argmax(-1).tolist()  # fp32 holds every bf16 exactly
    return best


def rank(sampler: Sampler, log_probs: Tensor, position: int | Tensor, tokens: Tensor | None = None) -> Tensor:
    """`Sampler.rank` of tensors."""
    if sampler.temperature == 0.0:
        return log_probs.float()
    if tokens is None:
        tokens = torch.arange(log_probs.shape[-1], device=log_probs.device)
    return log_probs.float() / sampler.temperature + gumbel(sampler.seed, position, tokens)


def reference_pick(logits: Tensor, temperature: float, seed: int, position: int) -> int:
    """argmax(logits / temperature + noise) of a row [vocab] on any device. Noise, which is bounded on both sides, is computed
    only for tokens that could win. `decoding.engine.sampling.numpy_choice` does the same faster on a CPU.
    """
    scaled = logits.float() / temperature
    tokens = torch.nonzero(scaled >= scaled.max() - (GUMBEL_MAX - GUMBEL_MIN)).squeeze(-1)
    return int(tokens[(scaled[tokens] + gumbel(seed, position, tokens)).argmax()])


def _pick(sampler: Sampler, logits: Tensor, position: int) -> int:
    if logits.device.type == "cpu":
        return sampler.pick(logits.detach().float().numpy(), position)
    return reference_pick(logits, sampler.temperature, sampler.seed, position)


def chosen_on_gpu(sampler: Sampler, logits: Tensor, positions: Sequence[int]) -> list[int]:
    """argmax(logits / temperature + keyed noise) for every row of logits [rows, vocab], by our kernel."""
    from kernels.choice import choose  # needs Triton

    heat = torch.full((len(logits),), sampler.temperature, dtype=torch.float32, device=logits.device)
    signed = (sampler.seed + (1 << 63)) % (1 << 64) - (1 << 63)  # the same 64 bits
    key, position = torch.tensor([[signed] * len(logits), list(positions)], device=logits.device)
    tokens: list[int] = choose(logits.contiguous(), heat, key, position).tolist()
    return tokens
