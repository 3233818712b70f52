"""What a target is fed: texts that it reads whole, and the rows of its forwards."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput, ForwardOutput


def read(target: AnyTarget, tokens: Sequence[int], taps: tuple[int, ...] = ()) -> npt.NDArray[np.float32]:
    """The states [tokens, taps, hidden] of a sequence opened with `taps`; nothing without. The prefix cache has it then."""
    sequence = target.open(tokens, Sampler(), taps)
    target.score([ForwardInput(sequence, tokens[sequence.cached :], Draft())])
    target.commit(sequence, ())
    target.close(sequence)
    return torch.as_tensor(sequence.hidden if taps else ()).numpy()


def rows_fed(target: AnyTarget, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The rows that each later call of `score` is fed, by sequence."""
    fed: list[list[int]] = []
    score = target.score

    def noted(work: Sequence[ForwardInput[Any]]) -> list[ForwardOutput]:
        fed.append([len(each.pending) + len(each.draft) for each in work])
        return score(work)

    monkeypatch.setattr(target, "score", noted)
    return fed
