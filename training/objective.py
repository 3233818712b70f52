"""What a run learns: packs, and their loss. That is all that the loop knows about a kind of training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from torch import Tensor

from training.config import TrainConfig, TrainingError
from training.packs.groups import Group, stop_token, tokenise
from training.packs.packing import P, Pack, digest_of, pack
from training.run.base import Base, evaluate, pack_loss, total_weight
from training.run.gpu_model import TrainModel


@dataclass(frozen=True, slots=True)
class Objective(Generic[P]):
    """Packs to train on and to measure on, with their loss and evaluation.

    The model is `Subject.model`, by default a `TrainModel`.
    loss: (model, pack, all packs of the step) -> [terms]: the pack's part of the step's mean loss, which is their sum.
    evaluate: (model, packs) -> figures by name; the lowest `loss` is the best.
    """

    packs: Sequence[P]
    held_out: Sequence[P]
    left_out: int  # texts that are longer than a pack
    loss: Callable[[Any, P, Sequence[P]], Tensor]
    evaluate: Callable[[Any, Sequence[P]], Mapping[str, float]]
    terms: tuple[str, ...] = ("loss",)
    factors: Callable[[float], Sequence[float]] | None = None  # of the terms, by the run's progress; None: always 1
    curve: Mapping[str, str] = field(default_factory=dict)  # what the loss curve depends on besides `TrainConfig`

    def digest(self) -> str:
        """SHA-256 of the packs to train on, in order."""
        return digest_of(self.packs)


Objectives = Callable[[TrainConfig, Base, Iterable[Any], Iterable[Any]], Objective[Any]]
"""A kind of training: (configuration, base, data, held-out data) -> what is learnt. Raises what `train` raises."""


def checked_rows(config: TrainConfig, base: Base) -> int:
    """Rows of a pack. Raises TrainingError if the model takes fewer tokens."""
    if config.pack_tokens > base.max_length:
        raise TrainingError(
            f"pack_tokens is {config.pack_tokens}, and the model takes {base.max_length} tokens: give fewer"
        )
    return config.pack_tokens


def some(packs: Sequence[P], rows: int) -> Sequence[P]:
    """The packs. Raises TrainingError if there are none."""
    if not packs:
        raise TrainingError(f"there is nothing to train on: no pair has at most pack_tokens = {rows} tokens")
    return packs


def answers(config: TrainConfig, base: Base, groups: Iterable[Group], held_out: Iterable[Group]) -> Objective[Pack]:
    """Supervised fine-tuning: cross-entropy of the pairs' answers. A pack may have more rows than a text may have tokens.

    Raises TrainingDataError, TrainingError.
    """
    rows, stop = config.pack_tokens, stop_token(base.tokenizer, config.stop_token)
    packs, left_out = pack(tokenise(groups, base.tokenizer, stop), rows, config.seed, base.max_length)
    some(packs, min(rows, base.max_length))
    measured, _ = pack(tokenise(held_out, base.tokenizer, stop), rows, config.seed, base.max_length)
    return packed_answers(packs, measured, left_out)


def packed_answers(packs: Sequence[Pack], held_out: Sequence[Pack], left_out: int) -> Objective[Pack]:
    """Supervised fine-tuning on packs."""

    def loss(model: TrainModel, one: Pack, step: Sequence[Pack]) -> Tensor:
        return (pack_loss(model, one) / total_weight(step))[None]

    return Objective(packs, held_out, left_out, loss, evaluate)
