"""Our path-conditioned tree: Domino's correction on a causal block, taught the target's distribution as JetSpec is.

A tree wants the second and third guesses right as well, which tokens alone do not teach; and a node may depend on the path
above it alone, so nothing of the block behind it may leak into it.
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
