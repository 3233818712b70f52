"""JetSpec: the target's distribution at every position of a causal block, with equal weights (arXiv 2606.18394).

The published port of the recipe has learning rate 3e-4, warm-up 4 %, clipping at 1, 6 epochs and 256 anchors. `causal` and
`gamma` are what its ablation varies: causal or bidirectional, and loss weightings (0, 3, 7, 15 there).
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
