"""DFlash: cross-entropy with the target's own tokens, where later ones weigh less (arXiv 2602.06036).

The released recipe is: learning rate 6e-4, warm-up 4 %, clipping at 1, 6 epochs, 256 to 512 anchors per text, gamma 7, 5, 4 for
blocks of 16, 10, 8.
"""

from dataclasses import dataclass
from typing import ClassVar

from decoding.training.head_kinds.blocks import BlockObjective


@dataclass(frozen=True, slots=True)
class DFlashObjective(BlockObjective):
    """See `BlockObjective`."""

    kind: ClassVar[str] = "dflash"
