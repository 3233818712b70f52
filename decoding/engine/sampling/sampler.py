"""Choosing one token from the target's logits, as a pure function of (logits, seed, position).

Gumbel noise is keyed by (seed, position, token), never drawn from a running generator (drafter-invariant sampling,
arXiv 2408.07978): in fp32 the text depends on target, temperature and seed only, whatever method drafts.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decoding.engine.sampling.numpy_choice import argmax_rows, keyed_argmax
from kernels.available import runs_kernels
from kernels.philox import GUMBEL_MAX, GUMBEL_MIN, gumbel


@dataclass(frozen=True, slots=True)
class Sampler:
    """Temperature 0 takes the argmax (the first of equals); any other takes argmax(logits / T + keyed Gumbel noise).

    Of two equals the first is taken; at T > 0, the same position always gets the same token:

    >>> logits = torch.tensor([0.0, 2.0, 1.0, 2.0])
    >>> Sampler().pick(logits, position=5)
    1
    >>> warm = Sampler(temperature=1.0, seed=3)
    >>> [warm.pick(logits, position) for position in range(8)]
    [2, 2, 3, 1, 1, 1, 3, 3]
    >>> warm.pick(logits, 4) == warm.pick(logits, 4)  # no generator advances between two calls
    True
    """

    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}")

    def pick(self, logits: Tensor, position: int) -> int:
        """The token for `position` (index into prompt + text) from logits [vocab]."""
        if self.temperature == 0.0:
            return argmax_rows(logits[None])[0]
        if logits.device.type == "cpu":
            return keyed_argmax(logits, self.temperature, self.seed, position)
        if runs_kernels(logits.device):
            return self._chosen_on_gpu(logits[None], [position])[0]
        return reference_pick(logits, self.temperature, self.seed, position)

    def rank(self, log_probs: Tensor, position: int | Tensor, tokens: Tensor | None = None) -> Tensor:
        """Scores by which a drafter should rank its guesses for `position`; they include the target's own noise.

        log_probs [..., vocab], or of the ids `tokens` [...] alone; a tensor [..., 1] ranks for several positions at once.
        """
        if self.temperature == 0.0:
            return log_probs.float()
        if tokens is None:
            tokens = torch.arange(log_probs.shape[-1], device=log_probs.device)
        return log_probs.float() / self.temperature + gumbel(self.seed, position, tokens)

    def chooser(self, logits: Tensor, positions: Callable[[int], int]) -> Callable[[int], int]:
        """The target's choice per row of logits [rows, vocab], each made when first asked for.

        `positions(row)` is the position of the token that the row predicts.

        >>> choice = Sampler().chooser(torch.tensor([[0.0, 1.0], [3.0, 2.0]]), lambda row: 10 + row)
        >>> choice(0), choice(1)
        (1, 0)
        """
        if self.temperature == 0.0:
            return argmax_rows(logits).__getitem__
        if runs_kernels(logits.device):
            return self._chosen_on_gpu(logits, [positions(row) for row in range(len(logits))]).__getitem__
        made: dict[int, int] = {}

        def choice(row: int) -> int:
            if row not in made:
                made[row] = self.pick(logits[row], positions(row))
            return made[row]

        return choice

    def _chosen_on_gpu(self, logits: Tensor, positions: Sequence[int]) -> list[int]:
        from decoding.engine.sampling.cuda_choice import chosen_tokens

        return chosen_tokens(logits, self.temperature, self.seed, positions)

    def derive(self, *labels: str | int) -> "Sampler":
        """The same temperature under another seed, fixed by the labels (request, step, vote, ...).

        >>> first, second = Sampler(1.0, seed=3).derive("vote", 1), Sampler(1.0, seed=3).derive("vote", 2)
        >>> first == Sampler(1.0, seed=3).derive("vote", 1), first.seed == second.seed
        (True, False)
        """
        text = repr((self.seed, *labels)).encode()
        return replace(self, seed=int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"))


def reference_pick(logits: Tensor, temperature: float, seed: int, position: int) -> int:
    """argmax(logits / temperature + noise) of a row [vocab] on any device. Noise, which is bounded on both sides, is computed
    only for tokens that could win. `decoding.engine.sampling.numpy_choice` does the same faster on a CPU.
    """
    scaled = logits.float() / temperature
    tokens = torch.nonzero(scaled >= scaled.max() - (GUMBEL_MAX - GUMBEL_MIN)).squeeze(-1)
    return int(tokens[(scaled[tokens] + gumbel(seed, position, tokens)).argmax()])
