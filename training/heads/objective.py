"""How a kind of head is trained, and the tokens that it may draft.

How a kind of head is trained: its input, and how its objective is made by name (`decoding.heads.kinds`).

The target is frozen. Its hidden states of whole texts (prompt and the target's own answer) are computed once and stored on disk
(`features`); heads of all kinds are trained on them. Texts come in forests (`training.packs.packing`): tokens that
several texts share are one row, and a row sees its ancestors and itself.

The draft vocabulary in training: frequent tokens and the batch's, as in `decoding.heads.kinds.draft_ids`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import ModelConfig
from decoding.heads.head import Head, HeadConfig
from decoding.heads.kinds import KINDS, imported
from training.config import TrainingError


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """One forest on the head's device; floats are fp32, ids int64.

    `sources`, `targets` and `owners` are the answers, one after another, each in order: the target's own token after row
    `sources[j]` is `targets[j]`, and `tokens[sources[j + 1]] == targets[j]` if `owners[j + 1] == owners[j]`. So every j is an
    anchor: its token is `tokens[sources[j]]`, its context is the rows that this row sees, and the true continuation is
    `targets[j:]` of the same owner. An answer's last target is the stop token, which has no row. Two answers may share their
    first rows.
    """

    tokens: Tensor  # [rows]
    positions: Tensor  # [rows] position in the text, from 0
    parents: Tensor  # [rows] the previous row of the same text, or -1
    sees: Tensor  # [rows, rows] bool: row i attends to row j (its ancestors and itself)
    hidden: Tensor  # [rows, taps, hidden] the target's states at the head's own taps, in their order
    final: Tensor  # [rows, hidden] after the target's final norm: the target's logits are final @ lm_head.T
    sources: Tensor  # [targets] rows
    targets: Tensor  # [targets] token ids
    owners: Tensor  # [targets] which answer
    embedding: Tensor  # the target's [vocab, hidden], frozen
    lm_head: Tensor  # the target's [vocab, hidden], frozen
    progress: float = 1.0  # of the run, 0 to 1, for curricula; 1 outside training

    def ahead(self, count: int) -> tuple[Tensor, Tensor]:
        """What follows every anchor: (index [targets, count] into `targets`, whether it is of the same answer [.., count]).

        index[j, i] is j + i if that is valid, so that column 0 is the anchor's own target; otherwise j.
        """
        own = torch.arange(len(self.targets), device=self.targets.device)
        index = own[:, None] + torch.arange(count, device=own.device)
        inside = index < len(own)
        index = torch.where(inside, index, own[:, None])
        valid = inside & (self.owners[index] == self.owners[:, None])
        return torch.where(valid, index, own[:, None]), valid

    def logits(self, rows: Tensor, ids: Tensor | None = None) -> Tensor:
        """The target's own logits after some rows, [*rows, vocab], or only those of the tokens `ids`."""
        return self.final[rows] @ (self.lm_head if ids is None else self.lm_head[ids]).T


class HeadObjective(Protocol):
    """How one kind of head is made and trained: a frozen dataclass whose fields are its options, with the paper's defaults.

    Random draws (anchors, noise) come from torch's global generator, which the loop seeds for every pack.
    """

    def new(self, target: ModelConfig, counts: Tensor) -> Head:
        """An untrained head, sized for the target. counts [vocab]: how often each token occurs in the answers."""
        ...

    def loss(self, head: Any, batch: HeadBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The mean loss over the batch's anchors, with gradient, and figures for the log (means, without gradient)."""
        ...


@runtime_checkable
class FromTarget(Protocol):
    """An objective whose heads are initialised from the target; most are initialised at random."""

    def start(self, head: Any, weights: Mapping[str, Tensor]) -> None:
        """Initialise `head`. weights: the target's, adapter included, with transformers' names."""
        ...


def load_objective(kind: str, **options: Any) -> HeadObjective:
    """The objective of a kind of head, with some of its options set. Raises TrainingError, which lists what there is."""
    if kind not in KINDS:
        raise TrainingError(f"no head of kind {kind!r} can be trained; choose one of: {', '.join(KINDS)}")
    objective = imported(KINDS[kind].objective, TrainingError)
    known = [field.name for field in fields(objective)]
    if unknown := sorted(set(options) - set(known)):
        raise TrainingError(f"{kind} has no option {unknown[0]}; it has: {', '.join(known) or 'none'}")
    return objective(**options)  # type: ignore[no-any-return]


def frequent_tokens(counts: Tensor, size: int) -> tuple[int, ...]:
    """The `size` most frequent tokens that occur in the answers, ascending; none if `size` is 0, for the whole vocabulary."""
    if not size:
        return ()
    best = counts.topk(min(size, len(counts)))
    return tuple(
        sorted(token for token, count in zip(best.indices.tolist(), best.values.tolist(), strict=True) if count)
    )


def batch_vocabulary(config: HeadConfig, batch: HeadBatch) -> Tensor:
    """Ids [size], ascending; all of them if the head names no frequent ones."""
    device = batch.tokens.device
    if not config.frequent:
        return torch.arange(config.vocab, device=device)
    ids: Tensor = torch.unique(torch.cat([torch.tensor(config.frequent, device=device), batch.tokens]))
    return ids


def places(ids: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(the index in `ids` of each token, whether it is there); the index is 0 if it is not."""
    found = torch.searchsorted(ids, tokens).clamp_max(len(ids) - 1)
    inside = ids[found] == tokens
    return found.where(inside, 0), inside


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Losses [...] from logits [..., size] and `labels` [...], which are indices into the vocabulary."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="none").view_as(labels)


def soft_cross_entropy(logits: Tensor, teacher: Tensor) -> Tensor:
    """Losses [...] from logits [..., size] to the distribution of `teacher` [..., size], which gets no gradient."""
    return -(teacher.detach().float().softmax(-1) * logits.float().log_softmax(-1)).sum(-1)
