"""A target's hidden states of training data as it has them when it decodes, in int8 for instance."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.engine.draft import Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import AnyTarget, Work
from decoding.serving.text_decoder import TextDecoder
from decoding.training.data.packing import ROOT, Pack


class EngineStates:
    """Feeds packs to a decoder's target, text by text; what texts share comes out of its prefix cache."""

    def __init__(self, decoder: TextDecoder) -> None:
        self._decoder = decoder

    def __call__(self, pack: Pack, taps: Sequence[int]) -> Tensor:
        """Hidden states [rows, taps, hidden] of every row, fp32; `decoding.engine.target.Target` defines taps."""
        return self._decoder.alone(lambda target: _states(target, pack, tuple(taps)))


def _states(target: AnyTarget, pack: Pack, taps: tuple[int, ...]) -> Tensor:
    depths = pack.positions()
    found = torch.empty(pack.rows, len(taps), target.embedding.shape[1])
    for start, stop in pack.chains():
        text = pack.tokens[_path(pack, stop - 1)].tolist()
        found[start:stop] = _fed(target, text, taps)[depths[start] :]
    return found


def _path(pack: Pack, row: int) -> list[int]:
    """The rows of the text that ends with this row."""
    path = [row]
    while (parent := int(pack.parents[path[-1]])) != ROOT:
        path.append(parent)
    return path[::-1]


def _fed(target: AnyTarget, text: Sequence[int], taps: tuple[int, ...]) -> Tensor:
    """The states [tokens, taps, hidden] of a text, which the target's prefix cache then holds."""
    sequence = target.open(text, Sampler(), taps)
    try:
        target.score([Work(sequence, text[sequence.cached :], Draft())])
        target.commit(sequence, ())
        return torch.as_tensor(
            np.array(sequence.hidden) if isinstance(sequence.hidden, np.ndarray) else sequence.hidden
        )
    finally:
        target.close(sequence)
