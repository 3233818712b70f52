"""EAGLE-3's drafter on our kernels: pairs of committed tokens, and behind them those of the round's tree."""

from collections.abc import Sequence

import numpy as np

from decoding.engine.method import Context
from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.target import Array
from decoding.heads.on_kernels.layers import ROWS, HeadLayers, Seen
from decoding.heads.on_kernels.tree_rows import TreeRows
from decoding.heads.on_kernels.vocabulary import KernelVocabulary, PackedRows
from decoding.heads.on_kernels.weights import HeadWeights, Workspace, padded_rows
from decoding.targets.int8.buffers import Longs


class KernelEagle3:
    """One text's drafter. See `decoding.methods.drafting.head_runtimes.Eagle3Runtime`."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        self._weights, self._space = weights, Workspace()
        self._embedding = np.asarray(context.embedding)
        own = weights.arrays.get("lm_head")
        if own is None:
            self._vocabulary = KernelVocabulary.for_prompt(context, frequent, prompt, self._space)
        else:
            ids = sorted(frequent) or range(len(own))
            self._vocabulary = KernelVocabulary(context, ids, self._space, PackedRows(own, np.arange(len(own))))
        self._layers = HeadLayers(weights, self._space, [None])
        self._features = np.empty((0, weights.width), np.float32)  # of tokens that have no pair yet
        self._state, self._tree = self._features, TreeRows()
        self.pairs = 0

    def read(self, hidden: Array) -> None:
        """Take in the states [new, taps, hidden] of the next tokens."""
        states = padded_rows(hidden)
        for first in range(0, len(states), ROWS):
            fused = self._space.linear(self._weights.matrix("fc"), states[first : first + ROWS])
            self._features = np.concatenate([self._features, fused])

    def pair(self, tokens: Sequence[int]) -> None:
        """Feed each new feature, paired with the token after it, once."""
        for first in range(0, len(self._features), ROWS):
            some = self._features[first : first + ROWS]
            start = self.pairs + 1  # position of the first token that is fed
            positions = np.arange(start, start + len(some))
            fed = tokens[start : start + len(some)]
            self._state = self._fed(fed, some, positions, self.pairs, Seen.chain(len(some)))[-1:].copy()
            self.pairs += len(some)
        self._features = self._features[:0]

    def root(self) -> Floats:
        """A new tree, and the state [1, width] at its root."""
        self._tree = TreeRows()
        return self._state

    def grow(self, tokens: Sequence[int], states: Floats, parents: Sequence[int], position: int) -> Floats:
        """The states of drafted tokens at `position`; parents: each one's in `states`, the last that were computed."""
        seen = self._tree.grow(parents)
        return self._fed(tokens, states[list(parents)], np.full(len(tokens), position), self.pairs, seen)

    def best(self, states: Floats, position: int, count: int) -> tuple[Longs, Floats]:
        """The best `count` tokens for `position` after each state, and their log-probabilities."""
        return self._vocabulary.best(self._weights.normed(states, "norm"), position, count, step=0)

    def _fed(self, tokens: Sequence[int], features: Floats, positions: Longs, before: int, seen: Seen) -> Floats:
        """The states of pairs."""
        weights, embedded = self._weights, padded_rows(self._embedding[list(tokens)])
        normed = weights.normed(features, "feature_norm")
        pairs = np.stack([weights.normed(embedded, "token_norm"), normed], 1)
        x = normed.copy() if weights.sizes["norm_before_residual"] else features.copy()
        return self._layers.run(x, pairs, positions, before, seen)
