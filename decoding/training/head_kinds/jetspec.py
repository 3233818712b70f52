"""JetSpec: the target's distribution at every place of a causal block, all depths alike (arXiv 2606.18394).

The published port of the recipe: learning rate 3e-4, warm-up 4 %, clipping at 1, 6 epochs, 256 anchors. Its ablation, causal
against bidirectional over loss weightings, is `causal` and `gamma` (0, 3, 7, 15 there).
"""

from dataclasses import dataclass
from typing import ClassVar

from decoding.training.head_kinds.blocks import BlockObjective


@dataclass(frozen=True, slots=True)
class JetSpecObjective(BlockObjective):
    """See `BlockObjective`."""

    kind: ClassVar[str] = "jetspec"
    causal: bool = True
    distribution: bool = True
    gamma: float = 0.0
