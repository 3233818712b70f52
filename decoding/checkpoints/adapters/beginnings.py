"""What answers begin with, by the end of their prompts: guesses for a text's first round, in which no mask was asked yet.

Answers to prompts that end alike begin alike, and what they go on with often stands in the prompt. So each of the first
positions has logits of the frequent tokens, fitted on the target's own answers. The scores of pairs and of followers
(`token_pairs`) are added to them as they are to what masks say.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Beginnings:
    """ends [kinds, 2]: the last two tokens of prompts. logits [kinds, positions, tokens + 1]: of the frequent tokens, and of
    each other one. Raises ValueError for other shapes.
    """

    ends: Ids
    logits: Floats

    def __post_init__(self) -> None:
        if self.ends.shape != (len(self.logits), 2) or self.logits.ndim != 3:
            raise ValueError(f"beginnings have shapes {list(self.ends.shape)} and {list(self.logits.shape)}")

    def behind(self, end: tuple[int, int]) -> Floats | None:
        """[positions, tokens + 1] of the answers to prompts with these last tokens; None where nothing is known."""
        kinds = np.flatnonzero((self.ends == end).all(1))
        return self.logits[kinds[0]] if len(kinds) else None
