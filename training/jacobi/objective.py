"""The losses of Consistency LLMs and of Jacobi Forcing, in one forward over clean and noisy text.

The loss is a weighted sum of two terms: `ar`, the mean cross-entropy of the model's own answers, and `consistency`, the soft
cross-entropy (temperature 1) from a noisy row to the detached logits of the clean row at its position, from a block's first
wrong token on; its mean is taken over a block's rows, then over blocks. The released trainer of Jacobi Forcing takes the mean
over all rows and divides by the number of blocks again, so that long texts count less; here every block counts the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.config import TrainConfig
from training.jacobi.states import (
    Example,
    JacobiBuilder,
    JacobiConfig,
    JacobiPack,
    chains,
    drawn_sweeps,
    guessed,
    swept,
)
from training.jacobi.trajectory import Trajectory
from training.objective import Objective, checked_rows, some
from training.packs.groups import Group, stop_token, tokenise
from training.packs.packing import fill
from training.run.base import Base, evaluate, target_loss, total_weight
from training.run.forward import TrainModel

Ids = tuple[int, ...]


def jacobi_objective(
    jacobi: JacobiConfig,
    config: TrainConfig,
    base: Base,
    data: Iterable[Any],
    held_out: Iterable[Any],
    gold: Iterable[Group] = (),
) -> Objective[JacobiPack]:
    """The objective over trajectories, or with `sweeps` over groups of pairs. The states are drawn once, by the seed.

    gold: pairs whose answers are learnt besides the trajectories' own, to keep accuracy; `gold_share` bounds their number.
    Raises TrainingError, TrainingDataError.
    """
    rows, read = checked_rows(config, base), partial(_trajectories, jacobi, config, base)
    learnt = examples(read(data), jacobi, config.seed)
    own = sum(map(len, learnt.values()))
    answered = gold_examples(gold, base, config, round(jacobi.gold_share * own))
    packs, left_out = fill(_merged(learnt, answered), rows, config.seed, JacobiBuilder)
    some(packs, rows)
    measured, _ = fill(_merged(examples(read(held_out), jacobi, config.seed)), rows, config.seed, JacobiBuilder)
    return Objective(
        packs,
        measured,
        left_out,
        partial(jacobi_loss, jacobi, config.label_smoothing),
        partial(jacobi_values, jacobi),
        terms=("ar", "consistency"),
        factors=lambda progress: (1.0, risen(progress, jacobi.consistency_warmup)),
        curve=jacobi.curve(),
    )


def _trajectories(jacobi: JacobiConfig, config: TrainConfig, base: Base, data: Iterable[Any]) -> Iterable[Trajectory]:
    if jacobi.sweeps is None:
        return data
    return guessed(
        data, base.tokenizer, stop_token(base.tokenizer, config.stop_token), jacobi.block_size, jacobi.first_guess
    )


def risen(progress: float, warmup: float) -> float:
    """The factor of the consistency weight: linear from 0 over the warm-up, then 1."""
    return min(1.0, progress / warmup) if warmup else 1.0


def gold_examples(groups: Iterable[Group], base: Base, config: TrainConfig, most: int) -> dict[Ids, list[Example]]:
    """At most `most` pairs, drawn by the seed, as examples without noise, by group."""
    listed = list(groups)
    if not listed or not most:
        return {}
    tokenised = tokenise(listed, base.tokenizer, stop_token(base.tokenizer, config.stop_token))
    pairs = [
        (tuple(base.tokenizer.encode(group.prefix)), pair)
        for group, own in zip(listed, tokenised, strict=True)
        for pair in own
    ]
    chosen: dict[Ids, list[Example]] = defaultdict(list)
    for index in np.random.default_rng([config.seed, 2]).permutation(len(pairs))[:most]:
        prefix, pair = pairs[index]
        chosen[prefix].append(Example(pair.step, pair.id, pair.tokens[: pair.prompt_tokens], pair.targets, ()))
    return chosen


def _merged(*parts: Mapping[Ids, list[Example]]) -> list[list[Example]]:
    """Groups with the same prefix merged into one, so that the prefix is fed once."""
    merged: dict[Ids, list[Example]] = defaultdict(list)
    for part in parts:
        for prefix, own in part.items():
            merged[prefix] += own
    return list(merged.values())


def examples(trajectories: Iterable[Trajectory], jacobi: JacobiConfig, seed: int) -> dict[Ids, list[Example]]:
    """Examples by group. The states of an answer depend only on the seed and on the answer's prompt."""
    groups: dict[Ids, list[Example]] = defaultdict(list)
    for trajectory in trajectories:
        chance = Random(f"{seed} {trajectory.prompt}")
        groups[trajectory.group].append(Example.of(trajectory, chains(trajectory, jacobi, chance)))
    return groups


def jacobi_loss(
    jacobi: JacobiConfig, label_smoothing: float, model: TrainModel, pack: JacobiPack, step: Sequence[JacobiPack]
) -> Tensor:
    """[2]: the pack's part of the step's `ar` and `consistency`, weighted."""
    pack = swept(model, pack, drawn_sweeps(pack, jacobi.sweeps or 0))
    logits = model.logits(model.rows(pack), training=True)
    answers = target_loss(logits[: len(pack.targets)], pack, label_smoothing) / total_weight(step)
    shares = torch.from_numpy(pack.shares).to(logits.device)
    matched = soft_losses(logits, pack) @ shares / (_blocks(step) or 1.0)
    return torch.stack([jacobi.ar_weight * answers, jacobi.consistency_weight * matched])


def soft_losses(logits: Tensor, pack: JacobiPack) -> Tensor:
    """[terms]: the cross-entropy from each noisy row to its teacher, which gets no gradient. logits: [sources, vocab]."""
    first = len(pack.targets)
    noisy = logits[first : first + len(pack.teachers)]
    clean = logits.detach()[torch.from_numpy(pack.teachers).long().to(logits.device)]
    return -(clean.softmax(-1) * noisy.log_softmax(-1)).sum(-1)


def _blocks(packs: Iterable[JacobiPack]) -> float:
    """The number of blocks with a wrong token: the shares of each sum to 1."""
    return float(sum(pack.shares.sum(dtype=np.float64) for pack in packs))


@torch.no_grad()
def jacobi_values(jacobi: JacobiConfig, model: TrainModel, packs: Sequence[JacobiPack]) -> Mapping[str, float]:
    """`loss`: as in training, without label smoothing, and its terms unweighted; `exact` as in `evaluate`. `stationary`: share
    of the noisy rows, each after a wrong token, whose most likely token is the clean row's, so that a sweep gets it right.
    """
    found = dict(evaluate(model, packs))
    total, right, terms = 0.0, 0, 0
    for pack in (swept(model, pack, drawn_sweeps(pack, jacobi.sweeps or 0)) for pack in packs):
        logits = model.logits(model.rows(pack))
        total += float(soft_losses(logits, pack).cpu() @ torch.from_numpy(pack.shares))
        best, first = logits.argmax(-1).cpu(), len(pack.targets)
        noisy, clean = best[first : first + len(pack.teachers)], best[torch.from_numpy(pack.teachers).long()]
        right, terms = right + int((noisy == clean).sum()), terms + len(noisy)
    consistency = total / (_blocks(packs) or 1.0)
    loss = jacobi.ar_weight * found["loss"] + jacobi.consistency_weight * consistency
    return found | {
        "loss": loss,
        "ar": found["loss"],
        "consistency": consistency,
        "stationary": right / max(terms, 1),
    }
