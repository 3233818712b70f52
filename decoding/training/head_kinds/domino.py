"""Domino's base-anchored curriculum: the loss moves from the block head's guesses to the corrected ones (arXiv 2605.29707).

L = (1 - lambda) * final + lambda * base, with lambda from 1 to 0. Recipe: learning rate 6e-4, warm-up 4 %,
clipping at 1, 3 epochs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from decoding.heads.modules.domino import DominoHead
from decoding.training.head_kinds.blocks import BlockObjective, Blocks, figures
from decoding.training.heads.objective import HeadBatch
from decoding.training.heads.vocabulary import batch_vocabulary


@dataclass(frozen=True, slots=True)
class DominoObjective(BlockObjective):
    """See `BlockObjective`; in addition:

    gru, rank: sizes of the correction. anchored: use the curriculum; otherwise the loss is on the corrected guesses only, which
    the paper found to starve the backbone. decay: share of the run after which lambda is 0. teacher_forcing: the encoder reads
    the true tokens; otherwise its own best guesses (training-time test, which the paper found to be worse).
    """

    kind: ClassVar[str] = "domino"
    gru: int = 256
    rank: int = 64
    anchored: bool = True
    decay: float = 1.0
    teacher_forcing: bool = True

    def more_sizes(self) -> dict[str, Any]:
        return {"gru": self.gru, "rank": self.rank}

    def loss(self, head: Any, batch: HeadBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss of the corrected guesses, mixed with that of the uncorrected ones."""
        blocks = self.blocks(head, batch)
        ids = batch_vocabulary(head.config, batch)
        rows = batch.lm_head[ids]
        base = blocks.states @ rows.T
        factor_rows = head.factor_rows(rows, ids)
        correct = corrected if self.teacher_forcing else self_corrected
        final = correct(head, base, factor_rows, blocks, batch, ids)
        loss = self.weighted(final, blocks, batch, ids)
        if self.anchored and (part := max(0.0, 1.0 - batch.progress / self.decay)):
            loss = (1 - part) * loss + part * self.weighted(base, blocks, batch, ids)
        before = figures(base.detach(), blocks, batch, ids)["accepted"]
        return loss, {"accepted_uncorrected": before, **figures(final.detach(), blocks, batch, ids)}


def corrected(
    head: DominoHead, base: Tensor, factor_rows: Tensor, blocks: Blocks, batch: HeadBatch, ids: Tensor
) -> Tensor:
    """Logits [blocks, guesses, size], corrected by the true tokens before; base: the uncorrected logits."""
    true = batch.targets[blocks.index[:, :-1]]
    read = functional.embedding(torch.cat([blocks.anchors[:, None], true], 1), batch.embedding)
    prefix = head.read_all(read)[:, 1:]
    return torch.cat([base[:, :1], base[:, 1:] + head.factor(blocks.states[:, 1:], prefix) @ factor_rows.T], 1)


def self_corrected(
    head: DominoHead, base: Tensor, factor_rows: Tensor, blocks: Blocks, batch: HeadBatch, ids: Tensor
) -> Tensor:
    """Logits [blocks, guesses, size], corrected by the head's own best tokens before, one after another as in drafting."""
    prefix = head.read(head.start(len(base)), functional.embedding(blocks.anchors, batch.embedding))
    logits = [base[:, 0]]
    for depth in range(1, base.shape[1]):
        guessed = ids[logits[-1].argmax(-1)]
        prefix = head.read(prefix, functional.embedding(guessed, batch.embedding))
        logits.append(base[:, depth] + head.factor(blocks.states[:, depth], prefix) @ factor_rows.T)
    return torch.stack(logits, 1)
