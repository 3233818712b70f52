"""How block heads are trained: DFlash, JetSpec, Domino and our path tree.

How block heads are trained: from random anchors, each followed by a block of masks and preceded by its context.

Losses are means over a block's guesses, weighted by depth: exp(-i / gamma) for guess i = 0, 1, ... (DFlash, arXiv 2602.06036).

DFlash: cross-entropy with the target's own tokens, where later ones weigh less (arXiv 2602.06036).

The released recipe is: learning rate 6e-4, warm-up 4 %, clipping at 1, 6 epochs, 256 to 512 anchors per text, gamma 7, 5, 4 for
blocks of 16, 10, 8.

JetSpec: the target's distribution at every position of a causal block, with equal weights (arXiv 2606.18394).

The published port of the recipe has learning rate 3e-4, warm-up 4 %, clipping at 1, 6 epochs and 256 anchors. `causal` and
`gamma` are what its ablation varies: causal or bidirectional, and loss weightings (0, 3, 7, 15 there).

Domino's base-anchored curriculum: the loss moves from the block head's guesses to the corrected ones (arXiv 2605.29707).

L = (1 - lambda) * final + lambda * base, with lambda from 1 to 0. Recipe: learning rate 6e-4, warm-up 4 %,
clipping at 1, 3 epochs.

Our path-conditioned tree: Domino's correction on a causal block, trained on the target's distribution like JetSpec.

A tree also needs good second and third guesses, which tokens alone do not teach. A node may depend only on the path above it,
so nothing from later in the block may leak into it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import ModelConfig
from decoding.heads.head import Head, HeadConfig, new_head
from decoding.heads.kinds import spread_taps
from decoding.heads.modules.block import BlockHead, DominoHead
from training.heads.features import (
    HeadBatch,
    batch_vocabulary,
    cross_entropy,
    frequent_tokens,
    places,
    soft_cross_entropy,
)


def attention_sizes(target: ModelConfig) -> dict[str, Any]:
    """Heads, rotary base and epsilon of the target's own layers."""
    return {
        "heads": target.heads,
        "kv_heads": target.kv_heads,
        "head_dim": target.head_dim,
        **target.rope.sizes(),
        "eps": target.rms_norm_eps,
    }


@dataclass(frozen=True, slots=True)
class Blocks:
    """A head's states after its anchors, and the true tokens there."""

    states: Tensor  # [blocks, guesses, hidden]
    anchors: Tensor  # [blocks] token ids
    index: Tensor  # [blocks, guesses] into the batch's `targets`: what each guess should be
    valid: Tensor  # [blocks, guesses] whether the answer is that long


@dataclass(frozen=True, slots=True)
class BlockObjective:
    """The objective that all kinds of block heads share.

    block_size: the anchor and the masks. layers, intermediate (0: about 1.8 times the target's width), taps: sizes of the
    head. causal: whether attention inside the block is causal. carry: see `BlockHead`; it also taps the target's last state.
    skip: whether the head has `BlockHead`'s `LastState`. anchors: blocks per batch, drawn at random. gamma: of the weights by
    depth; 0: equal weights. distribution: learn the target's distribution (forward KL) instead of its token. known: in half
    of the packs, blocks begin with 1 to this many known tokens, as after forced tokens; in the others with the anchor alone.
    frequent: size of the draft vocabulary besides each prompt's own tokens; 0: all tokens of the target.
    """

    block_size: int = 8
    layers: int = 1
    intermediate: int = 0
    taps: int = 3
    causal: bool = False
    carry: bool = True
    skip: bool = True
    anchors: int = 256
    gamma: float = 4.0
    distribution: bool = False
    known: int = 4
    frequent: int = 512
    kind: ClassVar[str]

    def new(self, target: ModelConfig, counts: Tensor) -> Head:
        taps = {*spread_taps(target.layers, self.taps), *([target.layers] if self.carry or self.skip else [])}
        return new_head(
            HeadConfig(
                self.kind,
                target.hidden_size,
                target.vocab_size,
                taps=tuple(sorted(taps)),
                sizes={
                    **attention_sizes(target),
                    "layers": self.layers,
                    "intermediate": self.intermediate or target.hidden_size * 16 // 9,
                    "block_size": self.block_size,
                    "causal": self.causal,
                    "carry": self.carry,
                    "skip_places": self.block_size - 1 if self.skip else 0,
                    **self.more_sizes(),
                },
                frequent=frequent_tokens(counts, self.frequent),
            )
        )

    def more_sizes(self) -> dict[str, Any]:
        """A kind's own sizes, besides those of the block."""
        return {}

    def loss(self, head: Any, batch: HeadBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss of the block's guesses, without any correction."""
        blocks = self.blocks(head, batch)
        ids = batch_vocabulary(head.config, batch)
        logits = blocks.states @ batch.lm_head[ids].T
        return self.weighted(logits, blocks, batch, ids), figures(logits, blocks, batch, ids)

    def blocks(self, head: BlockHead, batch: HeadBatch) -> Blocks:
        """One pass of the head over blocks that begin at randomly drawn anchors."""
        device = batch.targets.device
        drawn = torch.randperm(len(batch.targets))[: self.anchors].to(device)
        forced = int(torch.randint(2, ()) * torch.randint(self.known, ()))  # known tokens besides the drawn one
        masks = self.block_size - 1
        index, valid = (each[drawn] for each in batch.ahead(forced + masks + head.shift))
        rows = batch.sources[drawn]
        known = torch.cat([batch.tokens[rows, None], batch.targets[index[:, :forced]]], 1)
        seen = batch.sees[rows]
        seen[torch.arange(len(rows), device=device), rows] = False
        context = head.context(batch.hidden, batch.positions)
        before = batch.parents[rows]
        last = batch.hidden[before.clamp_min(0)] * (before >= 0)[:, None, None]
        states = head(known, batch.positions[rows], masks, batch.embedding, context, seen, last)
        return Blocks(states, known[:, -1], index[:, forced:], valid[:, forced:])

    def weighted(self, logits: Tensor, blocks: Blocks, batch: HeadBatch, ids: Tensor) -> Tensor:
        """The mean loss of logits [blocks, guesses, size] over the draft vocabulary `ids`."""
        losses, counted = self._losses(logits, blocks, batch, ids)
        depths = torch.arange(logits.shape[1], device=logits.device)
        weights = counted * (torch.exp(-depths / self.gamma) if self.gamma else torch.ones_like(depths))
        return (losses * weights).sum() / weights.sum().clamp_min(1e-6)

    def _losses(self, logits: Tensor, blocks: Blocks, batch: HeadBatch, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [blocks, guesses], and which of them count."""
        if self.distribution:
            teacher = batch.logits(batch.sources, ids)
            return soft_cross_entropy(logits, teacher[blocks.index]), blocks.valid
        labels, inside = places(ids, batch.targets[blocks.index])
        return cross_entropy(logits, labels), blocks.valid & inside


def figures(logits: Tensor, blocks: Blocks, batch: HeadBatch, ids: Tensor) -> dict[str, Tensor]:
    """`right_k`: share of correct guesses at depth k. `accepted`: correct tokens per block before the first wrong one.
    `faithful`: share of blocks that are correct to the answer's or their own end (JetSpec's rank-1 branch faithfulness).
    """
    right = (ids[logits.argmax(-1)] == batch.targets[blocks.index]) & blocks.valid
    share = right.sum(0) / blocks.valid.sum(0).clamp_min(1)
    accepted = right.int().cumprod(1).sum(1)
    faithful = accepted == blocks.valid.sum(1)
    return {
        "accepted": accepted.float().mean(),
        "faithful": faithful.float().mean(),
        **{f"right_{i + 1}": value for i, value in enumerate(share.unbind())},
    }


@dataclass(frozen=True, slots=True)
class DFlashObjective(BlockObjective):
    """See `BlockObjective`."""

    kind: ClassVar[str] = "dflash"


@dataclass(frozen=True, slots=True)
class JetSpecObjective(BlockObjective):
    """See `BlockObjective`."""

    kind: ClassVar[str] = "jetspec"
    causal: bool = True
    distribution: bool = True
    gamma: float = 0.0


@dataclass(frozen=True, slots=True)
class DominoObjective(BlockObjective):
    """See `BlockObjective`; in addition:

    gru, rank: sizes of the correction, whose encoder reads the true tokens. decay: share of the run after which lambda is 0.
    """

    kind: ClassVar[str] = "domino"
    gru: int = 256
    rank: int = 64
    decay: float = 1.0

    def more_sizes(self) -> dict[str, Any]:
        return {"gru": self.gru, "rank": self.rank}

    def loss(self, head: Any, batch: HeadBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss of the corrected guesses, mixed with that of the uncorrected ones."""
        blocks = self.blocks(head, batch)
        ids = batch_vocabulary(head.config, batch)
        rows = batch.lm_head[ids]
        base = blocks.states @ rows.T
        factor_rows = head.factor_rows(rows, ids)
        final = corrected(head, base, factor_rows, blocks, batch)
        loss = self.weighted(final, blocks, batch, ids)
        if part := max(0.0, 1.0 - batch.progress / self.decay):
            loss = (1 - part) * loss + part * self.weighted(base, blocks, batch, ids)
        before = figures(base.detach(), blocks, batch, ids)["accepted"]
        return loss, {"accepted_uncorrected": before, **figures(final.detach(), blocks, batch, ids)}


def corrected(head: DominoHead, base: Tensor, factor_rows: Tensor, blocks: Blocks, batch: HeadBatch) -> Tensor:
    """Logits [blocks, guesses, size], corrected by the true tokens before; base: the uncorrected logits."""
    true = batch.targets[blocks.index[:, :-1]]
    read = functional.embedding(torch.cat([blocks.anchors[:, None], true], 1), batch.embedding)
    prefix = head.read_all(read)[:, 1:]
    return torch.cat([base[:, :1], base[:, 1:] + head.factor(blocks.states[:, 1:], prefix) @ factor_rows.T], 1)


@dataclass(frozen=True, slots=True)
class PathTreeObjective(DominoObjective):
    """See `DominoObjective`."""

    kind: ClassVar[str] = "path_tree"
    causal: bool = True
    distribution: bool = True
