"""The border between targets on torch's operators and the engine: their logits become numpy arrays where it reads them."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.sampling.tensor_choice import chooser
from decoding.engine.target import Array, Scores, TokenSet

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int8: "int8"}


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a type, as `Target.weight_dtype` has it."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def tensor_scores(sampler: Sampler, logits: Tensor, hidden: Tensor | None, positions: Callable[[int], int]) -> Scores:
    """logits [1 + nodes, vocab] on any device: row 0 is the root's, row 1 + i that of node i. hidden: see `Scores`.

    `positions(row)` is the position of the token that the row predicts.
    """
    return scores_of(logits, hidden, chooser(sampler, logits, positions))


def scores_of(logits: Tensor, hidden: Array | None, choose: Callable[[int], int]) -> Scores:
    """The same, where `choose(row)` is the choice after a row."""

    def after(nodes: Sequence[int]) -> Floats:
        rows: Floats = logits[[node + 1 for node in nodes]].detach().float().cpu().numpy()
        return rows

    def among(nodes: Sequence[int], tokens: TokenSet) -> Floats:
        rows = logits[[node + 1 for node in nodes]].detach()
        found: Floats = rows[:, _on_device(tokens, logits.device)].float().cpu().numpy()
        return found

    return Scores(after, hidden, lambda node: choose(node + 1), len(logits) - 1, among)


@lru_cache(maxsize=32)
def _on_device(tokens: TokenSet, device: torch.device) -> Tensor:
    """The ids of a set that is asked about round after round."""
    return torch.from_numpy(tokens.ids).to(device)
