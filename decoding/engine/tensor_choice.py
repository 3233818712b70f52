"""The border between targets on torch's operators and the engine: the sampler's choice, and logits as numpy arrays.

The tokens are those of `decoding.engine.sampler`.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from decoding.engine.sampler import Floats, Sampler
from decoding.engine.target import Array, ForwardOutput, TokenSet
from kernels.available import runs_kernels
from kernels.gpu.philox import gumbel
from kernels.gpu.ragged import fetched, sent
from kernels.gumbel import GUMBEL_MAX, GUMBEL_MIN


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
        return chosen_together([sampler], logits, [[positions(row) for row in range(len(logits))]])[0].__getitem__
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
    only for tokens that could win. `decoding.engine.sampler` does the same faster on a CPU.
    """
    scaled = logits.float() / temperature
    tokens = torch.nonzero(scaled >= scaled.max() - (GUMBEL_MAX - GUMBEL_MIN)).squeeze(-1)
    return int(tokens[(scaled[tokens] + gumbel(seed, position, tokens)).argmax()])


def _pick(sampler: Sampler, logits: Tensor, position: int) -> int:
    if logits.device.type == "cpu":
        return sampler.pick(logits.detach().float().numpy(), position)
    return reference_pick(logits, sampler.temperature, sampler.seed, position)


def chosen_together(samplers: Sequence[Sampler], logits: Tensor, positions: Sequence[Sequence[int]]) -> list[list[int]]:
    """The choices of several sequences by our kernel; the device is waited for once.

    logits [rows, vocab]: of all sequences. positions: for each sequence, of the tokens that its rows predict.
    """
    if any(sampler.temperature for sampler in samplers):
        keys = [(sampler, at) for sampler, places in zip(samplers, positions, strict=True) for at in places]
        chosen = iter(fetched(_chosen(logits, keys)))
    else:
        chosen = iter(fetched(logits.argmax(-1)))
    return [list(islice(chosen, len(places))) for places in positions]


def _chosen(logits: Tensor, keys: Sequence[tuple[Sampler, int]]) -> Tensor:
    """argmax(logits / temperature + keyed noise) for every row of logits [rows, vocab], each with its sampler and position."""
    from kernels.gpu.choice import choose  # needs Triton

    heat = sent(np.array([sampler.temperature for sampler, _ in keys], dtype=np.float32), logits.device)
    numbers = [[_signed(sampler.seed) for sampler, _ in keys], [position for _, position in keys]]
    seed, position = sent(np.array(numbers, dtype=np.int64), logits.device)
    return choose(logits.contiguous(), heat, seed, position)


def _signed(seed: int) -> int:
    """The same 64 bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a type, as `Target.weight_dtype` has it."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def tensor_scores(
    sampler: Sampler, logits: Tensor, hidden: Tensor | None, positions: Callable[[int], int]
) -> ForwardOutput:
    """logits [1 + nodes, vocab] on any device: row 0 is the root's, row 1 + i that of node i. hidden: see `ForwardOutput`.

    `positions(row)` is the position of the token that the row predicts.
    """
    return scores_of(logits, hidden, chooser(sampler, logits, positions))


def scores_of(logits: Tensor, hidden: Array | None, choose: Callable[[int], int]) -> ForwardOutput:
    """The same, where `choose(row)` is the choice after a row."""

    def among(nodes: Sequence[int], tokens: TokenSet | None = None) -> Floats:
        return rows_of(logits[[node + 1 for node in nodes]], tokens)

    return ForwardOutput(among, hidden, lambda node: choose(node + 1), len(logits) - 1, among)


def rows_of(logits: Tensor, tokens: TokenSet | None) -> Floats:
    """Logits [rows, tokens] of some tokens, or of all."""
    wanted = logits.detach() if tokens is None else logits.detach()[:, _on_device(tokens, logits.device)]
    found: Floats = wanted.float().cpu().numpy()
    return found


@lru_cache(maxsize=32)
def _on_device(tokens: TokenSet, device: torch.device) -> Tensor:
    """The ids of a set that is asked about round after round."""
    return torch.from_numpy(tokens.ids).to(device)
