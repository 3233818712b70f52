"""Our path-conditioned tree: Domino's correction on a causal block, trained on the target's distribution like JetSpec.

A tree also needs good second and third guesses, which tokens alone do not teach. A node may depend only on the path above it,
so nothing from later in the block may leak into it.
"""

from dataclasses import dataclass
from typing import ClassVar

from decoding.training.head_kinds.domino import DominoObjective


@dataclass(frozen=True, slots=True)
class PathTreeObjective(DominoObjective):
    """See `DominoObjective`."""

    kind: ClassVar[str] = "path_tree"
    causal: bool = True
    distribution: bool = True
