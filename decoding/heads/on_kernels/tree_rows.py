"""Which rows the nodes of a drafter's tree see: a table that grows level by level, as the kernels read it."""

from collections.abc import Sequence

import numpy as np

from decoding.heads.on_kernels.layers import Seen


class TreeRows:
    """The tree of one round. size: rows per node, which see each other and the rows of the node's ancestors.

    hidden: rows that lie before those of the tree and that no node sees.
    """

    def __init__(self, size: int = 1, hidden: int = 0) -> None:
        self._size = size
        self._rows: list[list[int]] = [[]] * hidden  # what each row sees
        self._level: list[list[int]] = [[]]  # what the nodes of the last level see; the root sees none

    def grow(self, parents: Sequence[int]) -> Seen:
        """Add the next level's nodes; parents: in the last level."""
        first, size = len(self._rows), self._size
        self._level = [
            [*self._level[parent], *range(first + index * size, first + (index + 1) * size)]
            for index, parent in enumerate(parents)
        ]
        self._rows += [node for node in self._level for _ in range(size)]
        own = np.zeros((len(self._rows), max(map(len, self._rows))), np.int32)
        for row, seen in enumerate(self._rows):
            own[row, : len(seen)] = seen
        return Seen(own, np.array([len(seen) for seen in self._rows], np.int32), first)
