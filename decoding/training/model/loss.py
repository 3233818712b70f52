"""The loss of a pack's targets, and figures on held-out packs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoding.training.data.packing import Pack
from decoding.training.model.forward import TrainModel


def pack_loss(model: TrainModel, pack: Pack, label_smoothing: float = 0.0, training: bool = False) -> Tensor:
    """The sum over the pack's targets of weight times cross-entropy, in nats; a scalar with gradient.

    label_smoothing e: targets are (1 - e) of the true token and e of the uniform distribution over the vocabulary.
    """
    return target_loss(model.logits(model.rows(pack), training), pack, label_smoothing)


def target_loss(logits: Tensor, pack: Pack, label_smoothing: float = 0.0) -> Tensor:
    """`pack_loss` from the logits [targets, vocab]."""
    losses = functional.cross_entropy(
        logits,
        torch.from_numpy(pack.targets).long().to(logits.device),
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return losses @ torch.from_numpy(pack.weights).to(logits.device)


def total_weight(packs: Iterable[Pack]) -> float:
    """The divisor of the packs' summed loss."""
    return float(sum(pack.weights.sum(dtype=np.float64) for pack in packs))


@torch.no_grad()
def evaluate(model: TrainModel, packs: Sequence[Pack]) -> dict[str, float]:
    """`loss`: mean cross-entropy of a target, unweighted. `exact`: share of the pairs whose every target is the most likely
    token given those before it, so that greedy decoding writes the answer. Also `loss_<step>` and `exact_<step>`.
    """
    losses: dict[str, list[float]] = defaultdict(list)
    exact: dict[str, list[bool]] = defaultdict(list)
    for pack in packs:
        logits = model.logits(model.rows(pack))[: len(pack.targets)]
        targets = torch.from_numpy(pack.targets).long().to(model.device)
        nats = functional.cross_entropy(logits, targets, reduction="none").cpu().numpy()
        right = (logits.argmax(1) == targets).cpu().numpy()
        for index, (step, _) in enumerate(pack.pairs):
            own = pack.owners == index
            for name in ("", f"_{step}"):
                losses[name].extend(nats[own].tolist())
                exact[name].append(bool(right[own].all()))
    return {
        f"{kind}{name}": float(np.mean(found[name]))
        for name in losses
        for kind, found in (("loss", losses), ("exact", exact))
    }
